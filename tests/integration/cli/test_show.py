"""Which stored results `show` and `leverage` mean, and what the shell completes of them."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from click.testing import Result as Done

from compilewatch.cli import completion, group
from compilewatch.cli.stored_runs import leverage_command, newest_results
from compilewatch.cli.stored_runs import show_command as show
from compilewatch.errors import StoreError, UnknownModelError, UsageError
from compilewatch.records import FactoryBuild, Result, Status, Target
from compilewatch.store import Store
from tests import factories
from tests.sweeping import stored_run


def add(root: Path, *results: Result) -> str:
    return stored_run(Store(root), *results)


def found(root: Path, model: str) -> tuple[str, list[str]]:
    stored, results = newest_results(model, Store(root).runs())
    return stored.run.id, [result.request.model.name for result in results]


def test_a_model_is_found_by_name_family_file_or_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mynet.py").write_text("def build():\n    return 1\n")
    results = [factories.result(n, family="bert") for n in ("BertModel", "BertForMaskedLM")]
    own = factories.result("team/net", build=FactoryBuild(factory="mynet:build"))
    run = add(tmp_path / "o", *results, own)
    for name, model in (
        ("bertformaskedlm", "BertForMaskedLM"),
        ("bert", "BertModel"),
        *((name, "team/net") for name in ("./mynet.py", "mynet:build")),
    ):
        assert found(tmp_path / "o", name) == (run, [model])
    with pytest.raises(UnknownModelError, match="similar names: BertModel"):
        found(tmp_path / "o", "BretModel")


def test_a_newer_run_without_a_verdict_or_with_missing_results_does_not_hide_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = add(tmp_path, factories.result("A"))
    lost = add(tmp_path, factories.result("A"))
    (tmp_path / lost / "results.jsonl").unlink()
    foo = Target(backend="foo")
    newer, only = (
        add(tmp_path, factories.result(name, status=Status.UNSUPPORTED, target=foo))
        for name in "AB"
    )
    assert found(tmp_path, "A")[0] == verdict
    said = capsys.readouterr().err
    assert newer in said
    assert "results.jsonl is missing" in said
    assert found(tmp_path, "B")[0] == only
    with pytest.raises(StoreError, match="missing"):
        newest_results("A", (Store(tmp_path).open(lost),), named=True)


def _completed(monkeypatch: pytest.MonkeyPatch, root: Path, name: str, text: str) -> list[str]:
    monkeypatch.setenv("COMPILEWATCH_OUTPUT_DIR", str(root))
    parameter = next(p for p in show.params if p.name == "model")
    items = getattr(completion, name)(click.Context(show), parameter, text)
    return [getattr(item, "value", item) for item in items]


def test_runs_targets_and_models_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add(tmp_path, factories.result("team/net"))
    assert _completed(monkeypatch, tmp_path, "runs", "2") == [run]
    assert _completed(monkeypatch, tmp_path, "targets", "dynamo,ex") == [
        "dynamo,export", "dynamo,export:non_strict", "dynamo,export:strict"
    ]  # fmt: skip
    assert _completed(monkeypatch, tmp_path, "models", "A,TEAM/") == ["A,team/net"]
    assert _completed(monkeypatch, tmp_path, "models", "./my") == ["./my"]


def test_a_damaged_line_is_named_wherever_its_result_is_missing(tmp_path: Path) -> None:
    run = add(tmp_path, factories.result("A"), factories.result("B"))
    newer = add(tmp_path, factories.result("A"))
    path = tmp_path / run / "results.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"pass"', b'"\xff"', 1))
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").symlink_to(run)
    commands = ("runs", "show B", "leverage", "report", f"report {newer}", f"compare {run} {newer}")
    for command in commands:
        said = CliRunner().invoke(group, [*command.split(), "--output", str(tmp_path)])
        assert said.output.count(f"{path}:1: damaged line left out") == 1, said.output
        assert said.exit_code == 0


# --- leverage ---

SHARED = factories.graph_break()
OTHER = factories.graph_break("b", "GB0059")


def leverage(folder: Path, *arguments: str) -> Done:
    return CliRunner().invoke(leverage_command, [*arguments, "--output", str(folder)])


def test_a_run_is_ranked_by_line_or_id_and_wrong_names_are_one_line(tmp_path: Path) -> None:
    broken = factories.result("A", breaks=(SHARED,)), factories.result("B", breaks=(SHARED, OTHER))
    before = add(tmp_path, *broken)
    latest = add(tmp_path, factories.result("A"), factories.result("B", breaks=(OTHER,)))
    assert leverage(tmp_path).output.startswith(f"Run {latest}\n1 model has graph breaks on dynamo")
    said = leverage(tmp_path, before, "--by", "id", "--top", "1").output
    assert "2 models have graph breaks" in said
    assert "1 model would need steps that are not listed." in said
    found = json.loads(leverage(tmp_path, before, "--json").output)
    steps = [(fix["models"], fix["exact"], fix["affected"]) for fix in found["fixes"]]
    assert steps == [(["A"], True, 2), (["B"], False, 1)]
    for arguments, message in (
        (("nope",), "no run 'nope'"),
        ((before, "--target", "dynmo"), "did you mean 'dynamo'"),
    ):
        error = leverage(tmp_path, *arguments).exception
        assert isinstance(error, UsageError)
        assert message in str(error)
