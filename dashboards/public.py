"""The overview without variables, links and logs: what Grafana can share with anybody.

Externally shared dashboards take neither variables nor annotations of a data source; links would
lead to pages that need a login, and logs hold more than the public should see.
"""

from __future__ import annotations

import json
import re

from dashboards import overview
from dashboards.frame import PUBLIC, dashboard
from dashboards.sources import Json


def public() -> Json:
    page = dashboard(
        PUBLIC,
        "PyTorch compile compatibility of all monitored models: state, trend and reasons.",
        [
            overview.headline(),
            overview.costs(),
            [overview.share_over_time(24, 9)],
            [overview.models(18)],
        ],
        since="now-30d",
    )
    # Every selector names the job first, so that what was chosen can be left out.
    text = re.sub(r', \w+=~\\"\$\w+\\"', "", json.dumps(page | {"links": [], "annotations": {}}))
    # The ids that stack/grafana provisions.
    text = re.sub(r"\$\{(\w+)_datasource\}", r"\1", text)
    without: Json = json.loads(re.sub(r'"links": \[\{.*?\}\]', '"links": []', text))
    for panel in without["panels"]:
        for column in panel["fieldConfig"]["overrides"]:
            column["properties"] = [one for one in column["properties"] if one["id"] != "links"]
    return without
