"""The committed dashboards, read as Grafana reads them: panels, queries, variables, links."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dashboards.build import FOLDER

Json = dict[str, Any]

DASHBOARDS: dict[str, Json] = {
    made["uid"]: made for made in (json.loads(p.read_text()) for p in sorted(FOLDER.glob("*.json")))
}
PUBLIC = "compilewatch-public"

INTERVALS = {"$__interval": "1s", "$__range": "1h", "$__rate_interval": "4s"}
"""What Grafana puts in; short, so that a Prometheus that has just begun has an answer."""


@dataclass(frozen=True, kw_only=True)
class Query:
    """A query of a panel, or of a variable or annotation, which `where` says."""

    uid: str
    where: str
    ref: str
    kind: str
    expr: str
    instant: bool
    panel: Json

    def __str__(self) -> str:
        return f"{self.uid} / {self.where} / {self.ref}"


def panels(made: Json) -> list[Json]:
    """All panels but the titles of rows; those of a closed row too."""
    inside = [panel for row in made["panels"] for panel in row.get("panels", ())]
    return [panel for panel in [*made["panels"], *inside] if panel["type"] != "row"]


def variables(made: Json) -> dict[str, Json]:
    return {one["name"]: one for one in made["templating"].get("list", ())}


def queries(kind: str) -> list[Query]:
    """Every query of the panels, of data sources of this kind: `prometheus` or `loki`."""
    found = []
    for uid, made in DASHBOARDS.items():
        for panel in panels(made):
            found += [
                Query(
                    uid=uid,
                    where=panel["title"],
                    ref=target["refId"],
                    kind=kind,
                    expr=target["expr"],
                    instant=bool(target.get("instant")),
                    panel=panel,
                )
                for target in panel["targets"]
                if target["datasource"]["type"] == kind
            ]
    return found


def around() -> list[Query]:
    """Every PromQL of variables and annotations; `label_values(x, l)` gives x."""
    found = []
    for uid, made in DASHBOARDS.items():
        parts = [(f"variable {n}", v) for n, v in variables(made).items() if v["type"] == "query"]
        asked = [(name, one["query"]) for name, one in parts]
        asked += [
            (f"annotation {one['name']}", one["expr"])
            for one in made["annotations"].get("list", ())
        ]
        found += [
            Query(
                uid=uid,
                where=name,
                ref="A",
                kind="prometheus",
                expr=bare(raw),
                instant=True,
                panel={},
            )
            for name, raw in asked
        ]
    return found


def bare(query: str) -> str:
    """The PromQL inside a variable's query, or the query itself."""
    if match := re.fullmatch(r"label_values\((.*), \w+\)", query):
        return match[1]
    match = re.fullmatch(r"query_result\((.*)\)", query)
    return match[1] if match else query


def filled(expr: str, **values: str) -> str:
    """With variables replaced: those given by name, all others by "All"; `$1` is none."""
    for name, value in INTERVALS.items():
        expr = expr.replace(name, value)
    return re.sub(r"\$\{?([a-z_]\w*)(:\w+)?\}?", lambda match: values.get(match[1], ".*"), expr)


def links(made: Json) -> Iterator[tuple[str, Json, Json]]:
    """Where, the link, and the panel (empty for those at the top)."""
    for link in made["links"]:
        yield "top", link, {}
    for panel in panels(made):
        for link in panel.get("fieldConfig", {}).get("defaults", {}).get("links", ()):
            yield f"{panel['title']}/", link, panel
        for override in panel.get("fieldConfig", {}).get("overrides", ()):
            for one in override["properties"]:
                if one["id"] == "links":
                    for link in one["value"]:
                        yield f"{panel['title']}/{override['matcher']['options']}", link, panel
