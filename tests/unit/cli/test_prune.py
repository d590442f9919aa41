"""`compilewatch prune`: which runs go and which stay, what it says, and that what stays works."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from click.testing import Result as Done

from compilewatch.api.publish import prune, review
from compilewatch.cli.stored_runs import prune_command
from compilewatch.errors import UsageError
from compilewatch.records import Result, now
from compilewatch.store import Spooled, Store
from tests import factories
from tests.sweeping import begin, stored_run

NOW = datetime(2026, 1, 31, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "outputs")


def add(store: Store, *results: Result, days_ago: int = 0, **fields: Any) -> str:
    started = (NOW - timedelta(days=days_ago)).isoformat().replace("+00:00", "Z")
    return stored_run(store, *results, **{"started_at": started, **fields})


def superseded(store: Store, keep: int | None = 1, days: int | None = None) -> list[str]:
    return [judged.run for judged in review(store, keep=keep, days=days, now=NOW)[0]]


def held(store: Store) -> dict[str, str]:
    return {judged.run: judged.why for judged in review(store, keep=1, days=None, now=NOW)[1]}


def delete(store: Store) -> list[str]:
    return list(prune(store, review(store, keep=1, days=None, now=NOW)[0]))


def test_the_newest_of_each_selection_stay(store: Store) -> None:
    assert (superseded(store), held(store)) == ([], {})
    old = add(store)
    export = {"targets": ["export"], "depth": "full", "tier": "auto", "selection": {"top": 25}}
    only = add(store, settings=export)
    shards = [add(store, shard=f"{n}/2") for n in (1, 2)]
    newer = [add(store) for _ in range(2)]
    assert superseded(store, keep=1) == [newer[0], old]
    assert superseded(store, keep=2) == [old]
    assert superseded(store, keep=3) == []
    delete(store)
    assert [one.run.id for one in store.runs()] == [newer[1], *reversed(shards), only]
    assert store.open("latest").run.id == newer[1]


def test_days_keep_what_is_young(store: Store) -> None:
    runs = [add(store, days_ago=days_ago) for days_ago in (90, 60, 40, 30)]
    for keep, days, gone in (
        (None, 60, 1),
        (None, 1, 3),  # the newest stays whatever its age
        (2, 70, 1),  # with both rules a run stays that either keeps
        (3, 20, 1),
    ):
        assert sorted(superseded(store, keep, days)) == runs[:gone]


def test_only_finished_and_complete_runs_supersede(store: Store) -> None:
    finished = add(store)
    add(store, state="interrupted")
    incomplete = add(store, missing_shards=("1/2",))
    assert superseded(store) == []
    interrupted = add(store, state="interrupted")
    newest = add(store)
    gone = set(superseded(store))
    assert {finished, interrupted, incomplete} < gone
    assert newest not in gone


def test_what_is_in_use_is_held_with_the_reason(store: Store) -> None:
    baseline = add(store)
    waiting, linked = add(store, baseline=baseline), add(store)
    for sink in ("s3", "loki"):
        store.spool.put(sink, Spooled(run=waiting, since=now()))
    with begin(store) as writer:
        newest = add(store)
        (store.root / "latest").unlink()
        (store.root / "latest").symlink_to(linked)
        reasons = {
            linked: "outputs/latest points to it",
            waiting: f"waits for loki, s3: compilewatch publish {waiting}",
            baseline: f"the baseline of {waiting}, which waits to be published",
        }
        assert held(store) == reasons | {writer.run.id: "being written"}
        assert superseded(store) == []
        writer.finish("finished")  # its sweep still reports
        assert held(store) == reasons | {writer.run.id: "being written"}
    assert superseded(store) == [writer.run.id]
    assert newest in [one.run.id for one in store.runs()]


def test_what_is_no_run_or_lies_elsewhere_is_left_alone(store: Store, tmp_path: Path) -> None:
    elsewhere = Store(tmp_path / "elsewhere")
    foreign = add(elsewhere)
    store.root.mkdir()
    (store.root / foreign).symlink_to(elsewhere.root / foreign)
    damaged, newest = add(store), add(store)
    (store.root / damaged / "run.json").write_text("{")
    for name in ("papers", "20260101-000000-000", f"{newest}-copy", ".new-20260101-000000-0001"):
        (store.root / name).mkdir()
        (store.root / name / "file").write_text("mine")
    before = sorted(store.root.iterdir())
    assert held(store) == {foreign: "a link to another folder"}
    assert delete(store) == []
    assert sorted(store.root.iterdir()) == before
    assert elsewhere.open(foreign).run.id == foreign


def test_reused_results_and_their_artifacts_outlive_the_run_they_are_from(
    store: Store, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    (scratch / "torch_trace").mkdir(parents=True)
    (scratch / "torch_trace" / "a.log").write_text("trace")
    with begin(store) as writer:
        (result,) = writer.append([factories.result("A")], scratch)
        writer.finish("finished")
    old = writer.run.id
    with begin(store) as writer:
        writer.adopt([(result, store.root / old)])
        writer.finish("finished")
    assert delete(store) == [old]
    (kept,) = store.open("latest").results()
    assert (store.open("latest").path / kept.artifacts[0]).is_file()
    assert store.lookup_many(["key of A"])["key of A"].run == writer.run.id


def pruned(store: Store, *arguments: str, said: str | None = None) -> Done:
    command = [*arguments, "--output", str(store.root)]
    done = CliRunner().invoke(prune_command, command, input=said)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def there(store: Store) -> list[str]:
    return sorted(path.name for path in store.root.glob("[0-9]*"))


def test_a_dry_run_only_says_and_yes_deletes_and_names_what_cannot_be_read(store: Store) -> None:
    runs = [add(store) for _ in range(3)]
    done = pruned(store, "--keep", "1", "--dry-run")
    assert done.exit_code == 0
    assert [run in done.output for run in runs] == [True, True, False]
    for words in ("2 newer of its selection", "To delete: 2 runs, ", "To keep: 1 run."):
        assert words in done.output
    assert there(store) == runs
    (store.root / runs[0] / "run.json").write_text("{")
    done = pruned(store, "--keep", "1", "--yes")
    assert "Deleted: 1 run, " in done.output
    assert f"not deleted: {store.root / runs[0]}/run.json is damaged" in done.output
    assert there(store) == [runs[0], runs[2]]
    newest = add(store)
    said = json.loads(pruned(store, "--keep", "1", "--yes", "--json").output)
    assert said["deleted"] == [judged["run"] for judged in said["review"]["superseded"]] == runs[2:]
    assert said["review"]["freed_bytes"] > 0
    assert runs[0] in said["problems"][0]
    assert there(store) == [runs[0], newest]


def test_on_a_terminal_it_prompts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        add(store)
    monkeypatch.setattr("compilewatch.cli.stored_runs._is_interactive", lambda: True)
    for said, left in (("n\n", 3), ("\n", 3), ("y\n", 1)):
        done = pruned(store, "--keep", "1", said=said)
        assert "Delete them? [y/N]" in done.output
        assert ("Nothing was deleted." in done.output) == (left == 3)
        assert len(there(store)) == left


def test_wrong_input_deletes_nothing(store: Store) -> None:
    runs = [add(store) for _ in range(3)]
    for arguments, advice in (
        (["--yes"], "--keep N, --keep-days D or both"),
        (["--keep", "1"], "add --yes to delete, or --dry-run"),
        (["--keep", "1", "--json"], "add --yes to delete, or --dry-run"),
    ):
        with pytest.raises(UsageError, match=advice):
            pruned(store, *arguments)
    for option in ("--keep", "--keep-days"):
        assert pruned(store, option, "0", "--yes").exit_code == 2
    assert there(store) == runs
