import os
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch import records
from compilewatch.api.sweep import resume
from compilewatch.errors import ConfigError, LauncherError, StoreError, UsageError
from compilewatch.launchers import Completed, Observer
from compilewatch.records import Phase, Request, Result, Status
from compilewatch.store import StoredRun
from tests import factories, sweeping
from tests.fake_launcher import FakeLauncher, passing
from tests.killing import die_at, in_child
from tests.sweeping import ASKED, MODELS, events, names, run_sweep, seen, settings, store

EVERYONE = sorted(spec.name for spec in MODELS)


class Interrupted(FakeLauncher):
    """Answers `after` requests, then is cut short by `error`; knows whether it was closed."""

    def __init__(self, after: int, error: BaseException, **given: Any) -> None:
        super().__init__(**given)
        self.after = after
        self.error = error
        self.closed = False

    def run(self, requests: Iterable[Request], scratch: Path) -> Iterator[Completed]:
        try:
            for number, completed in enumerate(super().run(requests, scratch)):
                if number == self.after:
                    raise self.error
                yield completed
        finally:
            self.closed = True


class Watcher(Observer):
    """Notes what it is told; looks up that a result is on disk before it is counted."""

    def __init__(self, folder: Path) -> None:
        self.said: list[Any] = []
        self._store = store(folder)

    def on_plan(self, total: int, reused: int) -> None:
        self.said.append((total, reused))

    def on_result(self, result: Result, done: int, total: int) -> None:
        assert result in self._store.open().results()
        self.said.append((result.request.model.name, done, total))


def failing(status: Status, *names: str, phase: Phase = Phase.CREATE) -> FakeLauncher:
    """A launcher on which these models end with a status."""

    def answer(request: Request) -> Result:
        if request.model.name not in names:
            return passing(request)
        return factories.result(status=status, phase=phase, request=request)

    return FakeLauncher(answers=answer)


def broken() -> FakeLauncher:
    """A launcher on which the model A has a graph break."""
    return FakeLauncher(answers=sweeping.breaking({"A": [factories.graph_break()]}))


class Newer(FakeLauncher):
    """Its environment has another torch."""

    def environments(self) -> tuple[records.Environment, ...]:
        (environment,) = super().environments()
        return (msgspec.structs.replace(environment, torch="9.9", digest="newer"),)


def cut_short(folder: Path, after: int, **given: Any) -> StoredRun:
    """A sweep that is interrupted after so many results."""
    answers = given.pop("answers", None)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(folder, Interrupted(after, KeyboardInterrupt(), answers=answers), **given)
    return store(folder).unfinished()


def resumed(folder: Path, launcher: FakeLauncher | None = None, **given: Any) -> records.RunView:
    stored = store(folder).unfinished()
    return resume(store(folder), launcher or FakeLauncher(), settings(folder), stored, **given)


# --- one sweep ---


def test_everything_has_one_result_and_equal_requests_are_evaluated_once(tmp_path: Path) -> None:
    answers = sweeping.breaking({"A": [factories.graph_break()]})
    launcher = FakeLauncher(answers=answers, artifacts={"trace/a.log": b"a"})
    watcher = Watcher(tmp_path)
    view = run_sweep(tmp_path, launcher, observer=watcher)

    assert seen(launcher) == ASKED
    assert sorted(names(view.results)) == EVERYONE
    by_name = {r.request.model.name: r for r in view.results}
    assert by_name["org/two"].status is Status.PASS
    assert by_name["org/two"].reused_from == view.run.id
    assert by_name["org/one"].reused_from is None
    assert by_name["org/gated"].status is Status.SKIPPED
    assert (view.run.planned, view.run.state, view.notes) == (len(MODELS), "finished", ())

    stored = store(tmp_path).open()
    assert (stored.run, stored.results()) == (view.run, view.results)
    assert view.run.wall_seconds is not None
    assert not list(stored.path.glob(".scratch*"))

    assert watcher.said == [
        (6, 0),
        ("A", 2, 6),
        ("org/one", 3, 6),
        ("org/two", 4, 6),
        ("B", 5, 6),
        ("C", 6, 6),
    ]

    artifacts = {name: result.artifacts for name, result in by_name.items()}
    assert artifacts["org/two"] == artifacts["org/one"]
    assert artifacts["org/one"] == ("artifacts/org--one/dynamo/trace/a.log",)
    assert all((stored.path / name).is_file() for kept in artifacts.values() for name in kept)

    log = events(view, tmp_path)
    kinds = Counter(line["event"] for line in log)
    assert kinds == {"run_started": 1, "model_checked": 6, "graph_break": 1, "run_finished": 1}
    assert (log[0]["event"], log[-1]["event"]) == ("run_started", "run_finished")
    assert (log[0]["planned"], log[0]["skipped"], log[0]["duplicates"]) == (6, 1, 1)
    assert log[-1]["statuses"] == {"pass": 4, "graph_break": 1, "skipped": 1}
    assert {line["run"] for line in log} == {view.run.id}


def test_an_unchanged_sweep_evaluates_nothing_unless_it_is_fresh(tmp_path: Path) -> None:
    first = run_sweep(tmp_path, FakeLauncher(artifacts={"trace.log": b"t"}))
    for _ in range(2):  # a reused result keeps naming the run that measured it
        launcher, watcher = FakeLauncher(), Watcher(tmp_path)
        again = run_sweep(tmp_path, launcher, observer=watcher)
        assert (launcher.seen, watcher.said) == ([], [(6, 5)])
        reused = {r.request.model.name: r for r in again.results if r.status is Status.PASS}
        assert {r.reused_from for r in reused.values()} == {first.run.id}
        assert again.run.id != first.run.id
        path = store(tmp_path).open().path / reused["A"].artifacts[0]
        assert path.read_bytes() == b"t"
    launcher = FakeLauncher()
    run_sweep(tmp_path, launcher, fresh=True)
    assert seen(launcher) == ASKED


def test_what_did_not_last_or_runs_elsewhere_is_evaluated_again(tmp_path: Path) -> None:
    run_sweep(tmp_path, failing(Status.TIMEOUT, "A"))
    launcher = FakeLauncher()
    run_sweep(tmp_path, launcher)
    assert seen(launcher) == ["A"]
    newer = Newer()
    view = run_sweep(tmp_path, newer)
    assert seen(newer) == ASKED
    assert view.differences == ("torch 0.0.0+fake -> 9.9",)


def test_an_edited_override_evaluates_its_models_again_and_no_others(tmp_path: Path) -> None:
    run_sweep(tmp_path)
    overrides = tmp_path / "in" / "overrides"
    overrides.mkdir(parents=True)
    (overrides / "a.toml").write_text(
        '[[override]]\nreason = "r"\ndate = 2026-01-01\nclasses = ["B"]\nconfig = {x = 1}\n'
    )
    launcher = FakeLauncher()
    run_sweep(tmp_path, launcher)
    assert seen(launcher) == ["B"]
    assert launcher.seen[0].overrides_dir == str(overrides)


# --- what the second run says about the first ---


def test_a_regression_is_found_logged_and_remembered(tmp_path: Path) -> None:
    first = run_sweep(tmp_path)
    second = run_sweep(tmp_path, broken(), fresh=True)
    ((change,), baseline) = second.changes, second.baseline
    assert (change.kind, change.model) == ("regression", "A")
    assert baseline is not None
    assert second.run.baseline == baseline.id == first.run.id
    assert store(tmp_path).open().run.baseline == first.run.id
    log = {line["event"]: line for line in events(second, tmp_path)}
    assert log["regression"]["model"] == "A"
    assert log["run_finished"]["regressions"] == 1


def test_a_wrong_request_fails_before_anything_runs(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    for changes, kind, message in (
        ({"baseline": "20990101"}, UsageError, "no run"),
        ({"sinks": ["papyrus"]}, UsageError, "no sink 'papyrus'; known: html"),
        ({"environments": ["xla"]}, UsageError, "no environment 'xla'; known: default"),
    ):
        with pytest.raises(kind, match=message):
            run_sweep(tmp_path, launcher, settings=changes)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "expectations.toml").write_text("[[")
    with pytest.raises(ConfigError, match=r"expectations\.toml"):
        run_sweep(tmp_path, launcher)
    assert launcher.seen == []
    assert store(tmp_path).runs() == ()


EXPECTATIONS = """
schema_version = 1
[[expectation]]
model = "A"
status = "error"
reason = "needs a package"
date = 2026-01-01
[[expectation]]
model = "B"
status = "oom"
reason = "takes the machine down"
date = 2026-01-01
skip = true
"""


def test_expectations_are_met_skipped_outlived_and_those_of_today(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "expectations.toml"
    file.write_text(EXPECTATIONS)
    launcher = failing(Status.ERROR, "A")
    met = run_sweep(tmp_path, launcher)
    by_name = {r.request.model.name: r for r in met.results}
    assert by_name["A"].expectation == "needs a package"
    assert (by_name["B"].status, by_name["B"].detail) == (Status.SKIPPED, "takes the machine down")
    assert "B" not in seen(launcher)
    assert met.notes == ()

    outlived = run_sweep(tmp_path, fresh=True)
    (note,) = outlived.notes
    assert note.startswith(
        "A [dynamo]: expected error (needs a package, 2026-01-01) but the result is pass"
    )
    stale = [line for line in events(outlived, tmp_path) if line["event"] == "expectation_stale"]
    assert [line["model"] for line in stale] == ["A"]

    file.write_text(EXPECTATIONS.replace('"error"', '"graph_break"'))
    met = run_sweep(tmp_path, broken(), fresh=True)
    file.unlink()
    launcher = broken()
    again = run_sweep(tmp_path, launcher)
    (reused,) = (r for r in again.results if r.request.model.name == "A")
    assert "A" not in seen(launcher)
    assert (reused.reused_from, reused.expectation) == (met.run.id, None)


# --- cut short ---


def _assert_whole(tmp_path: Path, launcher: FakeLauncher, run_id: str, known: list[str]) -> None:
    """The resumed run is exactly its plan, and asked nothing that was known."""
    stored = store(tmp_path).open(run_id)
    assert sorted(names(stored.results())) == EVERYONE
    assert stored.damaged == ()
    assert stored.run.state == "finished"
    assert not set(seen(launcher)) & set(known)


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_an_interrupted_sweep_keeps_what_is_done(tmp_path: Path, after: int) -> None:
    stored = cut_short(tmp_path, after)
    known = names(stored.results())
    assert set(ASKED[:after]) <= set(known)
    assert (stored.run.state, stored.damaged) == ("interrupted", ())
    again = FakeLauncher()
    view = resumed(tmp_path, again)
    assert view.run.id == stored.run.id
    assert seen(again) == ASKED[after:]
    _assert_whole(tmp_path, again, view.run.id, known)
    kinds = [line["event"] for line in events(view, tmp_path) if line["event"].startswith("run_")]
    assert kinds == ["run_started", "run_interrupted", "run_resumed", "run_finished"]


class FullDisk(Observer):
    """Nothing can be stored after the result of B; a real disk fills up in test_full_disk.py."""

    def on_result(self, result: Result, done: int, total: int) -> None:
        if result.request.model.name == "B":
            raise StoreError("the disk is full")


def test_the_launcher_is_closed_when_a_result_cannot_be_stored(tmp_path: Path) -> None:
    launcher = Interrupted(99, KeyboardInterrupt())
    with pytest.raises(StoreError, match="disk is full") as caught:
        run_sweep(tmp_path, launcher, observer=FullDisk())
    assert launcher.closed, "while the traceback still holds the generator"
    assert caught.tb is not None
    again = FakeLauncher()
    view = resumed(tmp_path, again)
    assert seen(again) == ["C"]
    _assert_whole(tmp_path, again, view.run.id, ["A", "org/one", "B"])


class Forgetful(FakeLauncher):
    def run(self, requests: Iterable[Request], scratch: Path) -> Iterator[Completed]:
        return super().run(list(requests)[1:], scratch)


@pytest.mark.parametrize(
    ("launcher", "message"),
    [
        (Interrupted(2, LauncherError("no server")), "no server"),
        (Forgetful(), "while 1 request had no result"),
    ],
)
def test_a_launcher_that_gives_up_or_forgets_a_request_leaves_a_run_to_resume(
    tmp_path: Path, launcher: FakeLauncher, message: str
) -> None:
    with pytest.raises(LauncherError, match=message):
        run_sweep(tmp_path, launcher)
    log = (store(tmp_path).unfinished().path / "logs").glob("*.jsonl")
    assert message.encode() in next(log).read_bytes()


def test_a_run_is_never_of_two_environments_or_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_short(tmp_path, 1)
    with pytest.raises(UsageError, match="environment 'default' has changed"):
        resumed(tmp_path, Newer())
    monkeypatch.setattr("compilewatch.plan.worker_sha256", lambda: "edited")
    with pytest.raises(UsageError, match="the targets of compilewatch have changed"):
        resumed(tmp_path)
    assert store(tmp_path).unfinished().run.state == "interrupted"


def test_what_was_evaluated_or_asked_for_stays_on_resume(tmp_path: Path) -> None:
    """The kill fell between two lines of one write; an error of the set-up does not last."""

    def fails(request: Request) -> Result:
        return factories.result(status=Status.ERROR, phase=Phase.SETUP, request=request)

    run_sweep(tmp_path)
    stored = cut_short(tmp_path, 2, answers=fails, fresh=True)
    path = stored.path / "results.jsonl"
    *kept, last = path.read_bytes().splitlines(keepends=True)
    assert b'"org/two"' in last
    path.write_bytes(b"".join(kept))
    launcher = FakeLauncher()
    view = resumed(tmp_path, launcher)
    assert seen(launcher) == ["B", "C"], "a fresh sweep stays fresh"
    by_name = {r.request.model.name: r for r in view.results}
    assert by_name["org/two"].status is Status.ERROR
    assert by_name["org/two"].reused_from == view.run.id


def test_what_the_machine_may_have_caused_is_evaluated_again_on_resume(tmp_path: Path) -> None:
    """A crash, a timeout and an exhausted memory; what was seen of them stays as an attempt."""
    ended = {"A": Status.CRASHED, "B": Status.TIMEOUT, "C": Status.OOM}

    def answer(request: Request) -> Result:
        status = ended.get(request.model.name, Status.PASS)
        return msgspec.structs.replace(passing(request), status=status, detail=f"was {status}")

    specs = [factories.spec(name) for name in "ABCDE"]
    cut_short(tmp_path, 4, answers=answer, specs=specs)
    launcher = FakeLauncher()
    view = resumed(tmp_path, launcher)
    assert sorted(seen(launcher)) == ["A", "B", "C", "E"]
    assert len(view.results) == view.run.planned == 5
    assert {result.status for result in view.results} == {Status.PASS}
    kept = {r.request.model.name: [(a.status, a.reason) for a in r.attempts] for r in view.results}
    again = {name: [(status, f"was {status}")] for name, status in ended.items()}
    assert kept == again | {"D": [], "E": []}


# --- killed, for real ---


def test_killed_at_any_change_to_the_disk_nothing_is_lost_or_evaluated_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernel keeps what a killed process wrote: waiting for the disk only takes time here.
    for name in ("fdatasync", "fsync"):
        monkeypatch.setattr(os, name, lambda descriptor: None)
    for number in range(1, 500):
        place = tmp_path / str(number)
        place.mkdir()

        def act(place: Path = place, number: int = number) -> None:
            die_at(number)
            run_sweep(place, FakeLauncher(artifacts={"trace.log": b"t"}))

        status = in_child(act)
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        runs = store(place).runs()
        assert len(runs) <= 1
        launcher = FakeLauncher(artifacts={"trace.log": b"t"})
        if not runs:
            run_sweep(place, launcher)
            known: list[str] = []
        elif runs[0].run.state == "finished":
            known = EVERYONE
        else:
            known = names(runs[0].results())
            resumed(place, launcher)
        run_id = store(place).open().run.id
        _assert_whole(place, launcher, run_id, known)
        asked = [name for name in ASKED if name not in known]
        assert set(seen(launcher)) <= set(asked), number
        for result in store(place).open().results():
            for name in result.artifacts:
                assert (store(place).open().path / name).read_bytes() == b"t"
    assert number > 40, "there are more changes to the disk than that"
    assert status == 0, "the last one was not killed"


def test_killed_while_resuming_it_can_be_resumed_again(tmp_path: Path) -> None:
    cut_short(tmp_path, 1)
    for number in (1, 2, 4, 6):

        def act(number: int = number) -> None:
            die_at(number)
            resumed(tmp_path)

        assert os.WTERMSIG(in_child(act)) == signal.SIGKILL
    known = names(store(tmp_path).unfinished().results())
    launcher = FakeLauncher()
    view = resumed(tmp_path, launcher)
    _assert_whole(tmp_path, launcher, view.run.id, known)


def test_two_sweeps_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    def slow(request: Request) -> Result:
        time.sleep(0.01)
        return passing(request)

    def sweep(prefix: str) -> None:
        models = [*(f"{prefix}{n}" for n in range(30)), *(f"Common{n}" for n in range(10))]
        run_sweep(tmp_path, FakeLauncher(answers=slow), specs=list(map(factories.spec, models)))

    child = os.fork()
    if child == 0:
        os._exit(in_child(lambda: sweep("L")) != 0)
    sweep("R")
    assert os.waitpid(child, 0)[1] == 0
    runs = store(tmp_path).runs()
    assert len({stored.run.id for stored in runs}) == 2
    for stored in runs:
        evaluated = names(stored.results())
        assert len(evaluated) == len(set(evaluated)) == 40
        assert len({name[0] for name in evaluated} - {"C"}) == 1
        assert (stored.damaged, stored.run.state) == ((), "finished")
    assert store(tmp_path).open("latest").run.id in {stored.run.id for stored in runs}
