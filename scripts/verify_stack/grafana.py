"""Grafana's API: who may log in, and the data of every panel."""

import json
import re
import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import requests

from scripts.verify_stack.services import CheckError, Stack, until
from tests.reading import Json, panels

MAY_BE_EMPTY: Mapping[tuple[str, str], str] = {
    ("compilewatch-cost", "Least speed-up"): "speed is not measured by a sweep",
    ("compilewatch-health", "Overhead"): "the newest run may have reused every result",
    ("compilewatch-health", "Repositories covered"): "the run has no repositories of the Hub",
    ("compilewatch-health", "Repositories covered by part"): "the run has no repositories",
    ("compilewatch-profiles", "Comparisons by verdict"): "no earlier profile to compare with",
    ("compilewatch-profiles", "Slower models"): "no earlier profile to compare with",
    ("compilewatch-profiles", "Worth fixing first"): "the profiled model has no graph breaks",
    ("compilewatch-targets", "Neuron failures by class"): "Neuron does not run",
}
"""Panels, by the dashboard's uid and the panel's title, that may be empty after the sweep."""

PIXELS = 1600
"""The width of a browser's window, and the number of points of a panel of its full width."""
SCRAPE_MILLISECONDS = 120_000
"""From one scrape of the Pushgateway to the next."""
SCRAPES_SECONDS = 150.0
"""In which there is one, and a point of a trend after it."""
NEUTRAL = "no data"
"""What a panel shows in place of an answer: an outage must not look like good news."""
EVERYTHING = dict.fromkeys(
    ["source", "target", "mode", "family", "model", "reason", "failing", "gate_run", "replies"],
    ".*",
)
"""The variables of the dashboards, with all their values."""
CHOICES = 10
"""Values tried of a variable that holds one value."""


class Grafana:
    """A client that is logged in as admin."""

    def __init__(self, url: str, password: str) -> None:
        self.url = url.rstrip("/")
        self._session = requests.Session()
        self._session.auth = ("admin", password)

    def ask(
        self, path: str, body: Json | None = None, params: Mapping[str, str] | None = None
    ) -> Any:
        kind = "GET" if body is None else "POST"
        answer = self._session.request(kind, self.url + path, json=body, params=params, timeout=60)
        if not answer.ok and not (body and answer.status_code in (207, 400, 500)):
            raise CheckError(f"{path} answers {answer.status_code}: {answer.text[:200]}")
        return answer.json()

    def dashboards(self) -> dict[str, Json]:
        found = self.ask("/api/search", params={"type": "dash-db"})
        uids = sorted(one["uid"] for one in found)
        return {uid: self.ask(f"/api/dashboards/uid/{uid}")["dashboard"] for uid in uids}

    def values_of(self, uid: str, title: str, **values: str) -> list[float]:
        """The newest values of a panel, with these variables and all else selected."""
        dashboard = self.dashboards()[uid]
        (panel,) = (one for one in panels(dashboard) if one["title"] == title)
        start, end = (_time(dashboard["time"][side]) for side in ("from", "to"))
        (first, *_) = _choices(self, dashboard, start, end)
        step = _step(panel, end - start)
        body = {
            "queries": list(_queries(panel, first | values, step)),
            "from": str(start),
            "to": str(end),
        }
        frames = self.ask("/api/ds/query", body)["results"]["A"].get("frames", ())
        return [
            float(frame["data"]["values"][1][-1]) for frame in frames if frame["data"]["values"]
        ]


def client_of(stack: Stack) -> Grafana:
    return Grafana(stack.url("grafana"), stack.password())


def panels_say_that_their_source_is_down(grafana: Grafana, kind: str) -> str:
    """Each panel of a source that is down gets an error, and shows no text that claims anything.

    `kind` is `prometheus` or `loki`. In place of missing data Grafana shows `noValue`, beside a
    mark that the query failed.
    """
    wrong, count = [], 0
    for dashboard in grafana.dashboards().values():
        for panel in panels(dashboard):
            kinds = {one["datasource"]["type"] for one in panel.get("targets", ())}
            if kinds != {kind}:
                continue
            count += 1
            said = panel["fieldConfig"]["defaults"].get("noValue")
            if said != NEUTRAL:
                wrong.append(f"{panel['title']} says {said!r}")
            try:
                _ask(grafana, panel, EVERYTHING, (_time("now-1h"), _time("now")), 120_000)
            except CheckError:
                continue
            wrong.append(f"{panel['title']} has an answer")
    if wrong or not count:
        raise CheckError("; ".join(wrong[:5]) or f"no panel asks {kind}")
    return f"{count} panels"


def only_the_password_logs_in(stack: Stack) -> str:
    def login(password: str) -> int:
        url = stack.url("grafana") + "/api/org"
        return requests.get(url, auth=("admin", password), timeout=60).status_code

    if (status := login(stack.password())) != 200:
        raise CheckError(f"the generated password is answered with {status}")
    if (status := login("admin")) != 401:
        raise CheckError(f"admin/admin is answered with {status}")
    return "the generated one is taken, admin/admin is refused"


def all_dashboards_are_loaded(grafana: Grafana, folder: Path) -> str:
    wanted = {json.loads(path.read_text())["uid"] for path in folder.rglob("*.json")}
    if missing := wanted - set(grafana.dashboards()):
        raise CheckError(f"not loaded: {', '.join(sorted(missing))}")
    return f"{len(wanted)} dashboards"


def panels_answer(grafana: Grafana, uid: str, dashboard: Json) -> str:
    """Every panel's queries succeed over the dashboard's time; panels that need data have some.

    Grafana queries a trend at full multiples of its step, so that a panel with a step of an hour
    shows nothing of a first run until the hour is full: this is a fault, too.
    """
    start, end = (_time(dashboard["time"][side]) for side in ("from", "to"))
    choices = list(islice(_choices(grafana, dashboard, start, end), CHOICES))
    patience = time.monotonic() + SCRAPES_SECONDS
    shown = [panel for panel in panels(dashboard) if panel.get("targets")]
    allowed = {title for of, title in MAY_BE_EMPTY if of == uid}
    wrong, empty = [], 0
    for panel in shown:
        title = panel["title"]
        try:
            step = _step(panel, end - start)
            if sum(_ask(grafana, panel, values, (start, end), step) for values in choices):
                continue
            if title in allowed:
                empty += 1
                continue
            until(patience - time.monotonic(), partial(_has_recent, grafana, panel, choices))
            wrong.append(f"{title}: shows a run only after up to {step / 60_000:.0f} minutes")
        except CheckError as error:
            wrong.append(f"{title}: {error}")
    if wrong:
        raise CheckError(f"{len(wrong)} of {len(shown)} panels: {'; '.join(wrong)}")
    return f"{len(shown)} panels" + (f", {empty} rightly empty" if empty else "")


def _has_recent(grafana: Grafana, panel: Json, choices: list[Json]) -> str:
    """In the last minutes, at each scrape. Raises CheckError."""
    end = _time("now")
    times = (end - 15 * SCRAPE_MILLISECONDS, end)
    if not sum(_ask(grafana, panel, values, times, SCRAPE_MILLISECONDS) for values in choices):
        raise CheckError("empty")
    return ""


def _ask(grafana: Grafana, panel: Json, values: Json, times: tuple[int, int], step: int) -> int:
    """How many rows the panel has. Raises CheckError with the data source's words."""
    start, end = map(str, times)
    body = {"queries": list(_queries(panel, values, step)), "from": start, "to": end}
    answer = grafana.ask("/api/ds/query", body)
    results = answer.get("results", {})
    errors = [one["error"] for one in results.values() if one.get("error")]
    if errors or not results:
        raise CheckError((errors or [answer.get("message", "no answer")])[0].splitlines()[0])
    return sum(map(_rows, results.values()))


def _step(panel: Json, span: int) -> int:
    """Milliseconds between the points of the panel over a span."""
    exact = span / _points(panel) / 60_000
    least = [target.get("interval") for target in panel["targets"]] + [panel.get("interval")]
    nearest = min(STEP_MINUTES, key=lambda minutes: abs(minutes - exact))
    return max(nearest * 60_000, *(_milliseconds(text) for text in least if text))


STEP_MINUTES = (1, 2, 5, 10, 15, 20, 30, 60, 120, 180, 360, 720)
"""Steps that a browser requests, which takes the nearest: Grafana would write another step as a
fraction, which Prometheus rejects."""


def _points(panel: Json) -> int:
    return int(panel.get("maxDataPoints") or PIXELS * panel["gridPos"]["w"] / 24)


def _rows(result: Json) -> int:
    frames = [frame["data"]["values"] for frame in result.get("frames", ())]
    return sum(len(values[0]) for values in frames if values)


def _queries(panel: Json, values: Json, step: int) -> Iterator[Json]:
    """The panel's queries as the browser sends them."""
    for target in panel["targets"]:
        if target.get("hide"):
            continue
        query: Json = json.loads(_filled(json.dumps(target), values))
        yield query | {
            "datasource": dict.fromkeys(("uid", "type"), target["datasource"]["type"]),
            "intervalMs": step,
            "interval": f"{step}ms",
            "maxDataPoints": _points(panel),
        }


def _filled(text: str, values: Json) -> str:
    """`$name` and `${name}` replaced, inside of JSON; Grafana itself knows those with `__`."""

    def value(match: re.Match[str]) -> str:
        found = values.get(match[1] or match[2])
        return match[0] if found is None else json.dumps(found)[1:-1]

    return re.sub(r"\$(?:(\w+)|\{(\w+)(?::\w+)?\})", value, text)


def _choices(grafana: Grafana, dashboard: Json, start: int, end: int) -> Iterator[Json]:
    """Values of the dashboard's variables: "All" where it is offered, else one after the other."""
    variables = dashboard["templating"].get("list", [])

    def chosen(at: int, values: Json) -> Iterator[Json]:
        if at == len(variables):
            yield values
            return
        variable = variables[at]
        if variable["type"] != "query":
            yield from chosen(at + 1, values | {variable["name"]: variable["current"]["value"]})
            return
        offered = _offered(grafana, variable, values, start, end)
        if variable.get("includeAll"):
            every = variable.get("allValue") or "|".join(map(re.escape, offered))
            yield from chosen(at + 1, values | {variable["name"]: every})
            return
        for one in offered or [""]:
            yield from chosen(at + 1, values | {variable["name"]: one})

    yield from chosen(0, {})


def _offered(grafana: Grafana, variable: Json, values: Json, start: int, end: int) -> list[str]:
    """The values of a variable with a Prometheus query, as its list in Grafana shows them."""
    query = variable["query"]
    query = _filled(query["query"] if isinstance(query, dict) else query, values)
    api = "/api/datasources/proxy/uid/prometheus/api/v1"
    if match := re.fullmatch(r"label_values\((.*),\s*(\w+)\)", query):
        asked = {"match[]": match[1], "start": str(start // 1000), "end": str(end // 1000)}
        found = grafana.ask(f"{api}/label/{match[2]}/values", params=asked)
        return [str(value) for value in found["data"]]
    match = re.fullmatch(r"query_result\((.*)\)", query)
    if match is None:
        raise CheckError(f"variable {variable['name']}: a query of an unknown kind: {query}")
    found = grafana.ask(f"{api}/query", params={"query": match[1]})
    series = [
        "{" + ",".join(f'{k}="{v}"' for k, v in one["metric"].items()) + "}"
        for one in found["data"]["result"]
    ]
    pattern = re.compile(variable["regex"].strip("/") or "(.*)")
    return sorted({match[1] for one in series if (match := pattern.search(one))})


def _time(text: str) -> int:
    """Milliseconds since the epoch of `now` or `now-30d`."""
    _, _, ago = text.partition("now-")
    return int(time.time() * 1000) - (_milliseconds(ago) if ago else 0)


def _milliseconds(text: str) -> int:
    units = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    match = re.fullmatch(r">?(\d+)(ms|s|m|h|d)", text)
    if match is None:
        raise CheckError(f"no time that is known: {text}")
    return int(match[1]) * units[match[2]]
