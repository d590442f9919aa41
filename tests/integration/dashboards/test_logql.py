"""Every LogQL query parses with Grafana's grammar, and names only what events have."""

import functools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from compilewatch.events import LABELS, all_events
from compilewatch.records import Phase
from tests.reading import Query, filled, queries

ROOT = Path(__file__).parents[3]
FIELDS = {name for event in all_events() for name in event.__struct_fields__} | {"event"}
OWN = {"service_name", *Phase, "place", "code", "hint", "check", "what", "where", "at", "event"}
"""The collector's label, and names that a query makes."""

LOGQL = queries("loki")


@functools.cache
def grammar() -> Path:
    """The folder that Grafana's parser is installed in."""
    advice = "node and npm are missing: apt-get install --no-install-recommends nodejs npm"
    if shutil.which("node") and shutil.which("npm"):
        done = subprocess.run(
            [str(ROOT / "scripts" / "logql_parser.sh")], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return Path(done.stdout.strip())
        last = (done.stderr.strip().splitlines() or ["no words"])[-1]
        advice = f"scripts/logql_parser.sh could not install the grammar: {last}"
    if os.environ.get("CI"):
        pytest.fail(advice)
    pytest.skip(advice)


def parsed(*expressions: str) -> list[dict[str, Any]]:
    script = Path(__file__).parent / "logql" / "check.mjs"
    done = subprocess.run(
        ["node", str(script), str(grammar())],
        input=json.dumps(expressions),
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_every_query_parses_and_names_only_what_events_have() -> None:
    assert len(LOGQL) > 5
    for query, found in zip(LOGQL, parsed(*(filled(one.expr) for one in LOGQL)), strict=True):
        assert found["errors"] == [], f"{query}: {query.expr}"
        assert set(found["names"]) <= FIELDS | OWN, f"{query}: {query.expr}"


def test_the_check_sees_what_is_wrong() -> None:
    broken, misnamed = parsed("sum by (x) (", '{service_name="a"} | modell="b"')
    assert broken["errors"]
    assert "modell" in misnamed["names"]
    assert "modell" not in FIELDS


def test_streams_are_chosen_by_labels_and_only_by_those() -> None:
    """Anything else in the braces would choose no stream: it is structured metadata."""
    for query in LOGQL:
        inside = query.expr[query.expr.index("{") + 1 : query.expr.index("}")]
        names = {part.strip().split("=")[0] for part in inside.split(",")}
        assert names <= {"service_name", *LABELS}, query
        assert 'service_name="compilewatch"' in inside, query


def columns(query: Query) -> set[str]:
    """Names of labels that a table shows, of lines or of a number by labels."""
    for step in query.panel["transformations"]:
        if step["id"] == "filterFieldsByName":
            return set(step["options"]["include"]["names"]) - {"Time"}
    by = re.search(r"max by \(([^)]*)\)", query.expr)
    assert by
    return set(by[1].split(", "))


def test_the_columns_of_a_table_of_lines_are_fields_of_its_events() -> None:
    for query in (one for one in LOGQL if one.panel["type"] in ("table", "barchart")):
        chosen = re.search(r'event=~?"([^"]+)"', query.expr)
        assert chosen, query
        tags = set(chosen[1].split("|"))
        events = [event for event in all_events() if event.__struct_config__.tag in tags]
        assert len(events) == len(tags), query
        fields = {name for event in events for name in event.__struct_fields__}
        assert columns(query) <= fields | OWN, query


def test_a_template_names_only_what_events_have() -> None:
    named = {
        name
        for query in LOGQL
        for template in re.findall(r"`([^`]*{{[^`]*)`", query.expr)
        for name in re.findall(r"(?<=[ {])\.([a-z_]+)", template)
    }
    assert "occurrences" in named
    assert named <= FIELDS
