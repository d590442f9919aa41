"""The overview without variables, links and logs: what Grafana can share with anybody.

Externally shared dashboards take neither variables nor annotations of a data source; links would
lead to pages that need a login, and logs hold more than the public should see.
"""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import overview
from dashboards.frame import FIXED, PUBLIC, dashboard
from dashboards.queries import EVERYTHING


def public() -> Dashboard:
    kit, scope = FIXED, EVERYTHING
    return dashboard(
        PUBLIC,
        "PyTorch compile-compatibility of all models that are watched: state, trend and reasons.",
        [
            overview.alive(kit, scope),
            overview.changes(kit, scope, linked=False),
            overview.trend(kit, scope),
            overview.reasons(kit, scope, linked=False),
            overview.models(kit, scope, linked=False),
        ],
        since="now-90d",
    )
