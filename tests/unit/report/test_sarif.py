"""SARIF files: valid by the official schema, and within what GitHub accepts."""

import json
from pathlib import Path
from typing import Any

import pytest

from compilewatch import __version__
from compilewatch.analysis.comparison import compare
from compilewatch.records import GraphBreak, Target
from compilewatch.report import sarif
from compilewatch.report.sarif import SarifLocation, SarifResult, results_of, write_run
from tests import example_run, factories
from tests.reviewing import assert_as_reviewed
from tests.schemas import sarif_errors

LINE = SarifLocation(file="src/my pkg/net.py", line=12, text="        if y > 0:", function="Net.f")


def found(
    code: str = "GB0170",
    level: sarif.Level = "error",
    location: SarifLocation = LINE,
    **fields: Any,
) -> SarifResult:
    about = {
        "fingerprint": "0123456789ab",
        "explanation": "Detected data-dependent branching.",
        "hints": ("Use torch.where.",),
    }
    return SarifResult(
        graph_break=factories.graph_break(code=code, **{**about, **fields}),
        level=level,
        state="new",
        location=location,
        path=(SarifLocation(file="src/my pkg/net.py", line=9, function="forward"), LINE),
        checks=("tests/test_net.py::test_forward",),
    )


def content(*results: SarifResult) -> dict[str, Any]:
    log: dict[str, Any] = json.loads(sarif.encoded(results))
    assert sarif_errors(log) == []
    (run,) = log["runs"]  # GitHub refuses a file without one
    return dict(run)


def test_a_file_is_at_most_what_github_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sarif, "MOST_RESULTS", 30)
    many = [found(level="note", fingerprint=f"{n:012x}") for n in range(40)]
    run = content(*many, found(gb_type="x" * 100_000, explanation="x" * 100_000))
    assert len(run["results"]) == 30
    assert run["results"][0]["level"] == "error"  # the gravest are kept
    (rule,) = run["tool"]["driver"]["rules"]
    assert len(rule["name"]) <= 255
    assert len(rule["shortDescription"]["text"]) <= 1024
    assert len(rule["fullDescription"]["text"]) <= 1024
    (note,) = run["invocations"][0]["toolExecutionNotifications"]
    assert note["message"]["text"].startswith("11 results left out")


def test_the_file_of_a_run_with_everything_is_valid_and_as_reviewed(tmp_path: Path) -> None:
    path = tmp_path / "run.sarif"
    write_run(path, example_run.view(*example_run.row()))
    text = path.read_text()
    assert sarif_errors(json.loads(text)) == []
    reviewed = text.replace(f'"version": "{__version__}"', '"version": "VERSION"')
    assert_as_reviewed(reviewed, Path(__file__).with_name("run.sarif"))


def test_a_second_line_and_a_package_are_told_apart() -> None:
    packaged = SarifLocation(file="timm/layers/a.py", line=3, installed=True)
    first, second, note = content(
        found(), found(), found("symint", level="note", location=packaged)
    )["results"]
    # GitHub takes results with one fingerprint for one alert.
    hashes = [each["partialFingerprints"]["primaryLocationLineHash"] for each in (first, second)]
    assert hashes == ["0123456789ab:1", "0123456789ab:2"]
    (location,) = first["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "src/my%20pkg/net.py"
    region = location["physicalLocation"]["region"]
    assert (region["startLine"], region["startColumn"], region["endColumn"]) == (12, 9, 18)
    place = note["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": "timm/layers/a.py", "uriBaseId": "SITEPACKAGES"}


def broken(number: int, file: str = "transformers/a.py") -> GraphBreak:
    return factories.graph_break(fingerprint=str(number) * 12, file=file)


def test_states_are_relative_to_the_baseline() -> None:
    new, old, gone = map(broken, range(3))
    before = factories.result("A", breaks=(old, gone))
    results = [factories.result("A", breaks=(new, old)), factories.result("B", breaks=(old,))]
    first = factories.run("20260101-030405-0001")
    changes = compare(first, [before], factories.run(), results).changes
    compared = {"baseline": first, "changes": changes, "before": {("A", Target()): before}}
    found = {
        each.graph_break.fingerprint[0]: each
        for each in results_of(factories.view(*results, **compared))
    }
    states = {number: each.state for number, each in found.items()}
    assert states == {"0": "new", "1": "unchanged"}
    assert found["1"].checks == ("A on dynamo", "B on dynamo")
    assert {each.state for each in results_of(factories.view(*results))} == {None}


def test_code_below_the_current_folder_is_the_repositorys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src" / "mypkg").mkdir(parents=True)
    (tmp_path / "src" / "mypkg" / "net.py").touch()
    breaks = (broken(0, "mypkg/net.py"), broken(1))
    own, other = results_of(factories.view(factories.result("A", breaks=breaks)))
    assert (own.location.file, own.level) == ("src/mypkg/net.py", "warning")
    assert (other.location.installed, other.level) == (True, "note")
