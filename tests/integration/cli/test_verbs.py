"""Every verb, run as a person runs it, on one real sweep."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.cli import COMMANDS
from compilewatch.records import Phase, Result, Status
from tests.schemas import sarif_errors
from tests.team import MODULE, Compilewatch

pytestmark = pytest.mark.torch


def test_help_imports_no_verb_and_nothing_heavy() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from compilewatch.cli import group;"
        "done = CliRunner().invoke(group, ['--help']); assert done.exit_code == 0;"
        "heavy = {'torch', 'transformers', 'rich', 'jinja2', 'compilewatch.api.sweep'};"
        "print(done.output, sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("[]")
    assert all(verb in done.stdout for verb in COMMANDS)


def test_sweep_stores_verdicts_and_writes_every_file(swept: dict[str, Any]) -> None:
    assert swept["summary"]["statuses"] == {"pass": 1, "graph_break": 1}
    folder = Path(swept["folder"])
    for name in ("run.json", "results.jsonl", "junit.xml", "metrics.prom", "report/index.html"):
        assert (folder / name).stat().st_size > 0, name
    lines = (folder / "results.jsonl").read_bytes().splitlines()
    results = (msgspec.json.decode(line, type=Result) for line in lines)
    (broken,) = (result for result in results if result.status is Status.GRAPH_BREAK)
    (graph_break,) = broken.breaks
    assert (graph_break.file, graph_break.function) == ("team.py", "forward")
    source = (folder.parent.parent / "team.py").read_text().splitlines()
    assert "graph_break()" in source[graph_break.line - 1]


def test_a_second_sweep_reuses_stored_results(
    compilewatch: Compilewatch, swept: dict[str, Any]
) -> None:
    before = json.loads(compilewatch("runs", "--json").stdout)[0]["id"]
    again = json.loads(compilewatch("sweep", "--source", "manifest", "--json").stdout)
    assert again["summary"]["reused"] == 2
    assert (again["baseline"], again["changes"]) == (before, [])


def test_a_dry_run_checks_the_options_and_leaves_nothing(
    compilewatch: Compilewatch, tmp_path: Path
) -> None:
    asked = ("sweep", "--dry-run", "--output", str(tmp_path / "outputs"), "--top", "3")
    done = compilewatch(*asked, "--targets", "dynamo,export", "--shard", "1/2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(
        "on: dynamo, export\nas part 1/2\n--dry-run: nothing is evaluated\n"
    )
    for wrong in (("--targets", "x"), ("--families", "x"), ("--shard", "3/2"), ("--resume",)):
        assert compilewatch(*asked, *wrong).returncode == 2, wrong
    assert not (tmp_path / "outputs").exists()


def test_explain_and_sweep_print_for_people_and_write_sarif(
    compilewatch: Compilewatch, swept: dict[str, Any], team: Path
) -> None:
    done = compilewatch("sweep", "--source", "manifest", "--sarif", "found.sarif")
    assert done.returncode == 0
    assert "1 of 2 models compiles without graph breaks" in done.stdout
    assert "report/index.html" in done.stdout
    log = json.loads((team / "found.sarif").read_text())
    assert sarif_errors(log) == []
    # Another test broke a model for a while, which is resolved now.
    results = log["runs"][0]["results"]
    (result,) = (each for each in results if each.get("baselineState") != "absent")
    assert result["properties"]["checks"] == ["team/broken on dynamo"]
    done = compilewatch("explain", "team/broken", "--source", "manifest")
    assert done.returncode == 0, done.stderr
    assert "torch._dynamo.graph_break()" in done.stdout
    assert "\x1b[" not in done.stdout + done.stderr


def test_inputs_are_shown_saved_and_taken_back(compilewatch: Compilewatch, team: Path) -> None:
    done = compilewatch("inputs", "team/whole", "--source", "manifest", "--save", "x.toml")
    assert done.returncode == 0, done.stderr
    assert "[2, 3]" in done.stdout
    text = (team / "x.toml").read_text()
    (team / "x.toml").write_text(text.replace("[2, 3]", "[2, 5]"))
    done = compilewatch(
        "explain", "team/whole", "--source", "manifest", "--inputs", "x.toml", "--json"
    )
    assert json.loads(done.stdout)["inputs"][0]["shape"] == [2, 5]


def test_a_callable_that_is_named_makes_the_inputs(compilewatch: Compilewatch) -> None:
    done = compilewatch("explain", "team:broken", "--inputs", "team:inputs", "--json")
    result = msgspec.json.decode(done.stdout, type=Result)
    assert (result.inputs_strategy, result.inputs[0].shape) == ("factory", (2, 3))


@pytest.mark.matrix
def test_a_wrong_guess_is_shown_and_can_be_corrected(compilewatch: Compilewatch) -> None:
    done = compilewatch("inputs", "team:stubborn")
    assert done.returncode == 3
    assert "a call with them fails: RuntimeError: never" in done.stdout.replace("\n", " ")
    assert "compilewatch inputs team:stubborn --save FILE" in done.stdout
    done = compilewatch("explain", "team:stubborn", "--json")
    assert done.returncode == 3
    result = msgspec.json.decode(done.stdout, type=Result)
    assert (result.status, result.phase) == (Status.ERROR, Phase.INPUTS)


def test_show_report_and_compare_read_what_is_stored(
    compilewatch: Compilewatch, swept: dict[str, Any]
) -> None:
    run = swept["run"]["id"]
    assert run in compilewatch("runs").stdout
    shown = json.loads(compilewatch("show", "team/broken", "--run", run, "--json").stdout)
    assert [result["status"] for result in shown] == ["graph_break"]
    page = Path(swept["report"])
    page.unlink()
    assert compilewatch("report", run).returncode == 0
    assert page.exists()
    compared = compilewatch("compare", run, run, "--json", "--fail-on", "regression")
    assert (compared.returncode, json.loads(compared.stdout)["changes"]) == (0, [])
    for option, message in (
        (("--open",), "has no pages of tlparse for this model"),
        (("--artifacts", "out"), "has no artifacts of this model"),
    ):
        done = compilewatch("show", "team/whole", "--run", run, *option)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr


def test_show_writes_a_trace_that_tlparse_reads_and_opens_its_pages(
    program: Compilewatch, swept: dict[str, Any], tmp_path: Path
) -> None:
    """In separate processes: Python reads BROWSER once in a process."""
    asked = ("show", "team/broken", "--run", swept["run"]["id"])
    opened = tmp_path / "opened"
    browser = f"""sh -c 'echo "$0" >> {opened}' %s"""
    done = program(*asked, "--open", BROWSER=browser)
    assert done.returncode == 0, done.stderr
    assert "compilewatch show team/broken --artifacts DIRECTORY" in done.stdout
    done = program(*asked, "--open", "--artifacts", str(tmp_path / "out"), BROWSER=browser)
    assert done.returncode == 0, done.stderr

    restored = tmp_path / "out" / "dynamo"
    pages = [Path(url.removeprefix("file://")) for url in opened.read_text().split()]
    assert pages[1] == restored / "tlparse" / "index.html"
    assert pages[0].read_bytes() == pages[1].read_bytes()
    shutil.rmtree(pages[0].parents[2])
    (trace,) = (restored / "torch_trace").iterdir()
    tlparse, again = Path(sys.executable).with_name("tlparse"), tmp_path / "again"
    subprocess.run([tlparse, "--no-browser", "-o", again, trace], check=True, capture_output=True)
    names = {path.relative_to(again) for path in again.rglob("*") if path.is_file()}
    there = {path.relative_to(restored / "tlparse") for path in (restored / "tlparse").rglob("*.*")}
    assert names - there == {Path("raw.log"), Path("raw.jsonl")}


def test_shards_merge_into_a_complete_run(
    compilewatch: Compilewatch, swept: dict[str, Any]
) -> None:
    runs = []
    for shard in ("1/2", "2/2"):
        done = compilewatch("sweep", "--source", "manifest", "--shard", shard, "--json")
        # A shard of so small a sweep may have nothing to do, and then says so.
        assert done.returncode == 0, done.stderr
        runs.append(json.loads(done.stdout)["run"])
    assert sum(run["planned"] for run in runs) == 2
    merged = compilewatch("merge", *(run["id"] for run in runs), "--json")
    assert merged.returncode == 0, merged.stderr
    assert json.loads(merged.stdout)["summary"]["statuses"] == {"pass": 1, "graph_break": 1}


def test_a_regression_sets_the_exit_status(
    compilewatch: Compilewatch, swept: dict[str, Any], team: Path
) -> None:
    module = team / "team.py"
    text = module.read_text()
    module.write_text(text.replace("return torch.relu(x) + 1", "print(x.sum()); return x"))
    try:
        done = compilewatch(
            "sweep", "--source", "manifest", "--baseline", swept["run"]["id"], "--fail-on",
            "regression", "--json",
        )  # fmt: skip
    finally:
        module.write_text(text)
    assert done.returncode == 1, done.stderr
    (change,) = json.loads(done.stdout)["changes"]
    assert (change["kind"], change["model"]) == ("regression", "team/whole")


def test_reproduce_shows_the_same_break_in_plain_pytorch(
    compilewatch: Compilewatch, team: Path
) -> None:
    done = compilewatch("reproduce", "team/broken", "--source", "manifest", "--save", "r.py")
    assert done.returncode == 0, done.stderr
    script = (team / "r.py").read_text()
    assert "compilewatch" not in script
    ran = subprocess.run(
        [sys.executable, "r.py"], capture_output=True, text=True, cwd=team, check=True
    )
    line = next(n for n, text in enumerate(MODULE.splitlines(), 1) if "graph_break()" in text)
    found = f"2 graphs, 1 break at team.py:{line} (1), fullgraph rejected"
    assert f"graph break 1: team.py:{line}: " in ran.stdout
    assert ran.stdout.splitlines()[-2:] == [f"expected: {found}", f"got:      {found}"]
