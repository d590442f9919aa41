"""`compilewatch prune`: what it says before it deletes, and when it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from compilewatch.cli.stored_runs import prune_command
from compilewatch.errors import UsageError
from compilewatch.records import Plan
from compilewatch.store import Store
from tests import factories


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """Three finished runs of one selection."""
    made = []
    for _ in range(3):
        run = factories.run("", state="running")
        with Store(tmp_path).create_run(run, Plan(requests=(), skipped=(), digest="")) as writer:
            writer.finish("finished")
        made.append(writer.run.id)
    return made


def pruned(tmp_path: Path, *arguments: str, said: str | None = None) -> Result:
    done = CliRunner().invoke(prune_command, [*arguments, "--output", str(tmp_path)], input=said)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def there(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.glob("[0-9]*"))


def test_a_dry_run_only_says(tmp_path: Path, runs: list[str]) -> None:
    done = pruned(tmp_path, "--keep", "1", "--dry-run")
    assert done.exit_code == 0
    assert all(run in done.output for run in runs[:2])
    assert runs[2] not in done.output
    assert "2 newer of its selection" in done.output
    assert "To delete: 2 runs, " in done.output
    assert "To keep: 1 run." in done.output
    assert there(tmp_path) == runs


def test_yes_deletes_and_again_finds_nothing(tmp_path: Path, runs: list[str]) -> None:
    assert "Deleted: 1 run, " in pruned(tmp_path, "--keep", "2", "--yes").output
    assert there(tmp_path) == runs[1:]
    assert "To delete: 0 runs" in pruned(tmp_path, "--keep", "2", "--yes").output
    assert there(tmp_path) == runs[1:]


@pytest.mark.parametrize(("said", "left"), [("y\n", 1), ("n\n", 3), ("\n", 3)])
def test_on_a_terminal_it_prompts(
    tmp_path: Path, runs: list[str], monkeypatch: pytest.MonkeyPatch, said: str, left: int
) -> None:
    monkeypatch.setattr("compilewatch.cli.stored_runs._is_interactive", lambda: True)
    done = pruned(tmp_path, "--keep", "1", said=said)
    assert "Delete them? [y/N]" in done.output
    assert ("Nothing was deleted." in done.output) == (left == 3)
    assert len(there(tmp_path)) == left


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ((), "--keep N, --keep-days D or both"),
        (("--yes",), "--keep N, --keep-days D or both"),
        (("--keep", "1"), "add --yes to delete, or --dry-run"),
        (("--keep", "1", "--json"), "add --yes to delete, or --dry-run"),
    ],
)
def test_wrong_input_deletes_nothing(
    tmp_path: Path, runs: list[str], arguments: tuple[str, ...], advice: str
) -> None:
    with pytest.raises(UsageError, match=advice):
        pruned(tmp_path, *arguments)
    assert there(tmp_path) == runs


@pytest.mark.parametrize("option", ["--keep", "--keep-days"])
def test_keeping_none_is_wrong_input(tmp_path: Path, runs: list[str], option: str) -> None:
    done = pruned(tmp_path, option, "0", "--yes")
    assert done.exit_code == 2
    assert there(tmp_path) == runs


def test_json_has_every_fact(tmp_path: Path, runs: list[str]) -> None:
    (tmp_path / runs[0] / "run.json").write_text("{")
    said = json.loads(pruned(tmp_path, "--keep", "1", "--yes", "--json").output)
    assert said["deleted"] == [runs[1]]
    assert [judged["run"] for judged in said["review"]["superseded"]] == [runs[1]]
    assert said["review"]["freed_bytes"] > 0
    assert runs[0] in said["problems"][0]


def test_a_run_that_cannot_be_read_is_named_and_left_alone(tmp_path: Path, runs: list[str]) -> None:
    (tmp_path / runs[0] / "run.json").write_text("{")
    done = pruned(tmp_path, "--keep", "1", "--yes")
    assert f"not deleted: {tmp_path / runs[0]}/run.json is damaged" in done.output
    assert there(tmp_path) == [runs[0], runs[2]]
