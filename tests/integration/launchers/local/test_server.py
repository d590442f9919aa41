"""Who starts, watches and ends processes: real servers and children, models without torch."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch import environments
from compilewatch.contract.messages import Abandon, Exited, Kill, NotStarted, Start, Started
from compilewatch.environments import Interpreter
from compilewatch.errors import CompilewatchError, InterpreterError, LauncherError
from compilewatch.launchers import peer
from compilewatch.launchers.local import launcher as local
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import Depth, Phase, Request, Result, Status, Target
from tests.doubles import has_ended
from tests.integration.launchers.conftest import bare_request, chaos_request, hurried

Make = Callable[..., LocalLauncher]


def ask(name: str, **fields: Any) -> Request:
    return bare_request(name, **{"key": f"key-{name}-{len(fields)}", **fields})


def results(launcher: LocalLauncher, asked: Iterable[Request], scratch: Path) -> dict[str, Result]:
    return {a.result.request.key: a.result for a in launcher.run(asked, scratch)}


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ("kill_server", "ended by SIGKILL"),
        pytest.param("stop_server", "did not respond for 0.5 s", marks=pytest.mark.matrix),
    ],
)
def test_a_server_that_dies_or_hangs_is_replaced_and_its_killer_found(
    bare_launcher: Make,
    scratch: Path,
    behaviour: str,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("PING_SECONDS", "ANSWER_SECONDS"):
        monkeypatch.setattr(peer, name, 0.5)
    launcher = bare_launcher(jobs=2)
    neighbours = [bare_request("ok", key=f"ok-{n}") for n in range(6)]
    hang = ask("hang", deadlines=hurried("create", 3.0))
    asked = [hang, ask(behaviour), *neighbours]
    found = results(launcher, asked, scratch)
    assert [found[n.key].status for n in neighbours] == [Status.PASS] * 6
    guilty = found[ask(behaviour).key]
    assert guilty.status is Status.CRASHED
    assert guilty.detail.endswith("twice, the second time without other requests running")
    assert [why in attempt.reason for attempt in guilty.attempts] == [True]
    innocent = found[hang.key]
    assert innocent.status is Status.TIMEOUT
    assert [why in attempt.reason for attempt in innocent.attempts] == [True]


def test_a_crash_that_does_not_come_back_is_an_attempt(bare_launcher: Make, scratch: Path) -> None:
    asked = ask("crash_once", inputs_file=str(scratch.parent / "marker"))
    (result,) = results(bare_launcher(), [asked], scratch).values()
    assert result.status is Status.PASS
    (attempt,) = result.attempts
    assert (attempt.status, attempt.reason) == (Status.CRASHED, "SIGBUS in create")


def test_leaving_early_ends_server_and_children_and_keeps_requested_artifacts(
    bare_launcher: Make, scratch: Path
) -> None:
    launcher = bare_launcher(jobs=1)
    asked = [ask("ok", keep_artifacts=False), ask("ok"), ask("hang")]
    answers: Any = launcher.run(asked, scratch)  # a generator, which can be closed
    without, kept = next(answers), next(answers)
    assert without.artifacts is None
    child = _wait_for_pid(scratch)
    server = int(_status(child, "PPid"))
    answers.close()
    assert has_ended(child)
    assert has_ended(server)
    assert list(scratch.iterdir()) == [kept.artifacts]


def test_a_server_that_cannot_fork_has_the_results_of_one_that_can_and_says_so_once(
    bare_launcher: Make,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("BARE_WORKER_THREADS", "8")
    launcher = bare_launcher(jobs=2)
    hang = ask("hang", deadlines=hurried("create", 0.4))
    asked = [hang, ask("kill_server"), *(bare_request("ok", key=f"ok-{n}") for n in range(4))]
    found = results(launcher, asked, scratch)
    assert found[hang.key].status is Status.TIMEOUT
    assert found[ask("kill_server").key].status is Status.CRASHED
    assert [found[f"ok-{n}"].status for n in range(4)] == [Status.PASS] * 4
    (said,) = caplog.messages
    assert "'bare'" in said
    assert "starts 8 more threads" in said


SWEEP = """
import sys
from pathlib import Path
from compilewatch import environments
from compilewatch.environments import Interpreter
from compilewatch.launchers.local.launcher import LocalLauncher
from tests.integration.launchers.local.test_server import ask
environments.INTERPRETERS["bare"] = Interpreter(executable=sys.argv[1])
for answer in LocalLauncher(1, ("bare",)).run([ask("hang")], Path(sys.argv[2])):
    print(answer)
"""


def sweep(python: Path, scratch: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", SWEEP, str(python), str(scratch)]
    return subprocess.Popen(command, cwd=Path(__file__).parents[4], stderr=subprocess.PIPE)


@pytest.mark.parametrize("which", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_the_parent(bare_python: Path, scratch: Path, which: int) -> None:
    with sweep(bare_python, scratch) as parent:
        child = _wait_for_pid(scratch)
        server = int(_status(child, "PPid"))
        assert _status(child, "NSsid") != _status(server, "NSsid")
        parent.send_signal(which)
        complaint = parent.stderr.read().decode()
    assert has_ended(child)
    assert has_ended(server)
    if which == signal.SIGINT:
        assert complaint.rstrip().endswith("KeyboardInterrupt")
        assert list(scratch.iterdir()) == []


def test_the_kernel_ends_children_whose_server_is_killed(bare_python: Path, scratch: Path) -> None:
    """The launcher is stopped, so that only the kernel can have done it."""
    with sweep(bare_python, scratch) as parent:
        child = _wait_for_pid(scratch)
        parent.send_signal(signal.SIGSTOP)
        os.kill(int(_status(child, "PPid")), signal.SIGKILL)
        ended = has_ended(child)
        parent.kill()
    assert ended


def test_a_server_that_does_not_start_is_one_line(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken-python"
    broken.write_text("#!/bin/sh\necho 'ImportError: libtorch.so' >&2\nexit 1\n")
    broken.chmod(0o755)
    interpreter = Interpreter(executable=str(broken))
    monkeypatch.setitem(environments.INTERPRETERS, "bare", interpreter)
    launcher = LocalLauncher(1, ("bare",))
    with pytest.raises(InterpreterError, match=r"'bare' is broken: ImportError: libtorch\.so"):
        launcher.environments()
    with pytest.raises(LauncherError, match="before it was ready: ImportError: libtorch") as caught:
        list(launcher.run([ask("ok")], scratch))
    assert "\n" not in str(caught.value)


def test_a_request_for_an_environment_that_changed_or_is_missing_is_rejected(
    bare_launcher: Make, scratch: Path
) -> None:
    launcher = bare_launcher()
    (known,) = launcher.environments()
    launcher._described["bare"] = msgspec.structs.replace(
        known, digest="another", transformers="4.0.0"
    )
    # What changed is said, and only that: torch is the same.
    message = r"changed while it was in use \(transformers 4\.0\.0 -> [^,()]*\)"
    with pytest.raises(LauncherError, match=message):
        list(launcher.run([ask("ok")], scratch))
    with pytest.raises(LauncherError, match="requests environment 'xla'"):
        list(launcher.run([chaos_request("ok", target=Target(environment="xla"))], scratch))


class StubServer:
    """A server that never reports what a test leaves out of its script."""

    def __init__(self, script: Callable[[Start], list[Any]]) -> None:
        self.name, self.alive, self.end_reason, self.threads = "bare", True, "", 1
        self.environment = None
        self.real_device = False
        self.orders: list[Any] = []
        self._script = script
        self._reports: list[Any] = []

    def send(self, order: Any) -> None:
        self.orders.append(order)
        if isinstance(order, Start):
            self._reports += self._script(order)

    def reports(self, timeout_seconds: float) -> list[Any]:
        reports, self._reports = self._reports, []
        return reports

    def close(self) -> None:
        self.alive = False

    def suits(self, *_: object) -> bool:
        return self.alive


@pytest.fixture
def on_stub(
    bare_launcher: Make, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """`on_stub(stub, request)`: the result of one request on a stub."""

    def run(stub: StubServer, asked: Request) -> Result:
        monkeypatch.setattr(local, "ServerProcess", lambda *_, **__: stub)
        (done,) = bare_launcher().run([asked], scratch)
        return done.result

    return run


def test_a_child_that_nothing_ends_is_given_up(
    on_stub: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an uninterruptible sleep in the kernel: its slot and its answer must not wait."""
    monkeypatch.setattr(local, "GRACE_SECONDS", 0.01)
    stub = StubServer(
        lambda start: [Started(folder=start.folder, pid=2**22 + 1, at=time.monotonic())]
    )
    result = on_stub(stub, ask("hang", deadlines=hurried("setup", 0.01)))
    assert (result.status, result.phase) == (Status.TIMEOUT, Phase.SETUP)
    start, *rest = stub.orders
    signals = (signal.SIGTERM, signal.SIGKILL)
    kills = [Kill(folder=start.folder, signal=number) for number in signals]
    assert rest == [*kills, Abandon(folder=start.folder)]


def test_a_fork_that_fails_is_tried_again_with_nothing_beside_it(
    on_stub: Callable[..., Result],
) -> None:
    reason = "Cannot allocate memory"
    stub = StubServer(lambda start: [NotStarted(folder=start.folder, reason=reason)])
    result = on_stub(stub, ask("ok"))
    assert result.status is Status.CRASHED
    assert f"{reason}, twice, the second time without other requests" in result.detail
    assert len([order for order in stub.orders if isinstance(order, Start)]) == 2


def test_a_kill_by_a_kernel_out_of_memory_is_oom(
    on_stub: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter(range(100))
    monkeypatch.setattr(local, "oom_kills", lambda: next(counts))

    def script(start: Start) -> list[Any]:
        ended = Exited(folder=start.folder, code=-signal.SIGKILL, peak_memory_bytes=2**30)
        return [Started(folder=start.folder, pid=2**22 + 1, at=time.monotonic()), ended]

    result = on_stub(StubServer(script), ask("ok"))
    assert (result.status, result.attempts) == (Status.OOM, ())
    assert (result.peak_memory_bytes, result.depth) == (2**30, Depth.FULL)


def test_the_server_queue_is_kept_full_but_no_fuller(
    bare_launcher: Make, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next child can start while the caller still deals with the last answer."""
    seen: list[str] = []

    def script(start: Start) -> list[Any]:
        seen.append(start.folder)
        return [Exited(folder=start.folder, code=1, peak_memory_bytes=1)]

    asked = [bare_request("ok", key=f"k{n}") for n in range(9)]
    monkeypatch.setattr(local, "ServerProcess", lambda *_, **__: StubServer(script))
    answers = bare_launcher(jobs=2).run(asked, scratch)
    next(answers)
    assert len(seen) == 8  # four were sent, ended, and replaced before the first was yielded
    assert len(list(answers)) == 8


def test_the_next_server_that_cannot_start_loses_no_result_of_this_one(
    bare_python: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [bare_request("ok", key=f"first-{n}") for n in range(3)]
    asked.append(bare_request("ok", key="second", environment="other"))
    missing = Interpreter(executable=str(bare_python.with_name("missing")))
    monkeypatch.setitem(environments.INTERPRETERS, "other", missing)
    answered: list[str] = []
    with pytest.raises(CompilewatchError, match=r"'other'.*cannot be started"):  # noqa: PT012
        for done in LocalLauncher(2, ("bare", "other")).run(asked, scratch):
            answered.append(done.result.request.key)  # noqa: PERF401  (some before the error)
    assert sorted(answered) == ["first-0", "first-1", "first-2"]


def _wait_for_pid(scratch: Path) -> int:
    """The pid of the child that hangs below scratch."""
    while True:
        for path in scratch.glob("key-hang*/artifacts/pid"):
            if text := path.read_text():
                return int(text)
        time.sleep(0.01)


def _status(pid: int, field: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{field}:"))
