"""A real Ray cluster of several node processes on this machine; models without torch."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from compilewatch.api.sweep import sweep_models
from compilewatch.config import load_settings
from compilewatch.errors import LauncherError
from compilewatch.extras.cluster.driver import Driver, Node, _reach, load_ray, loss_of
from compilewatch.extras.cluster.launcher import (
    ClusterConnection,
    ClusterReport,
    Flight,
    RayLauncher,
)
from compilewatch.records import Environment, FactoryBuild, Request, Status, Target
from compilewatch.store import Store
from tests import factories
from tests.doubles import has_ended
from tests.integration.launchers.conftest import bare_request
from tests.ray_nodes import SOON_DEAD
from tests.sharing import free_port

Make = Callable[..., RayLauncher]


@pytest.fixture
def third_node(ray_cluster: Any) -> Iterator[Any]:
    """A node that a test may kill."""
    node = ray_cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20, memory=16 * 2**30)
    yield node
    if node in ray_cluster.worker_nodes:
        ray_cluster.remove_node(node)


def raylet(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


@contextlib.contextmanager
def meanwhile(action: Callable[[], None]) -> Iterator[None]:
    """Runs an action in a thread beside the block, and waits for its end."""
    thread = threading.Thread(target=action)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_a_node_lost_in_mid_sweep_loses_no_result_and_the_run_says_so(
    ray_cluster: Any, third_node: Any, bare_ray: Make, tmp_path: Path, gate: Path
) -> None:
    specs = [factories.spec(f"gate-{n}", checkpoint=str(gate)) for n in range(9)]
    lost: list[bool] = []

    def kill() -> None:
        _until(lambda: len(list(gate.glob("started-*"))) >= 3)
        lost.append((gate / f"started-{raylet(third_node)}").exists())
        workers = [process.pid for process in psutil.Process(raylet(third_node)).children()]
        ray_cluster.remove_node(third_node, allow_graceful=False)
        # A worker may outlive its raylet for long enough to send a result.
        _until(lambda: all(map(has_ended, workers)))
        (gate / "open").touch()

    given = {"output_dir": str(tmp_path / "outputs"), "sinks": [], "environments": ["bare"]}
    settings = load_settings(given, folder=tmp_path, environ={})
    launcher = bare_ray(node_timeout_seconds=61.0)  # of its own, which sees the third node
    assert launcher.jobs == 3
    store = Store(tmp_path / "outputs")
    with meanwhile(kill):
        view = sweep_models(store, launcher, specs, [Target()], settings, source="library")
    assert lost == [True]
    assert Counter(r.request.model.name for r in view.results) == {s.name: 1 for s in specs}
    assert {r.status for r in view.results} == {Status.PASS}
    again = [r for r in view.results if r.attempts]
    assert len(again) == 1
    assert again[0].attempts[0].reason.startswith("its Ray node ")
    assert view.notes == ("1 request was evaluated again because a node of the cluster was lost",)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A folder that models of behaviour `gate` wait in, until there is a file `open`."""
    folder = tmp_path / "gate"
    folder.mkdir()
    return folder


def driver_of(launcher: RayLauncher) -> int:
    assert launcher._driver is not None
    return launcher._driver.process.pid


def gate_request(gate: Path) -> Request:
    return bare_request("gate", model=factories.spec("gate", checkpoint=str(gate)))


def arrived(gate: Path) -> list[Path]:
    """The marks of models that wait at the gate, at least one."""
    _until(lambda: bool(list(gate.glob("started-*"))))
    return list(gate.glob("started-*"))


def worker_at_work(gate: Path) -> int:
    """The worker process of Ray, of this test's cluster, whose server's child came to the gate."""
    for path in arrived(gate):
        path.unlink()
    workers = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            server = "compilewatch.worker.process.server" in process.cmdline()
            owner = process.parent()
            if server and process.children() and owner and owner.cmdline()[0].startswith("ray::"):
                workers.add(owner.pid)
    (worker,) = workers
    return worker


def test_a_driver_that_hangs_is_replaced_and_what_it_had_is_evaluated_again(
    bare_ray: Make, scratch: Path, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the driver had seen get lost before is remembered."""
    launcher = bare_ray()
    assert launcher.jobs
    first = driver_of(launcher)

    def interfere() -> None:
        os.kill(worker_at_work(gate), signal.SIGKILL)
        arrived(gate)
        with monkeypatch.context() as patched:
            patched.setattr(launcher, "_silence", 3.0)  # three times what it takes
            os.kill(first, signal.SIGSTOP)
            _until(lambda: has_ended(first))
        (gate / "open").touch()

    with meanwhile(interfere):
        (answer,) = launcher.run([gate_request(gate)], scratch)
    assert answer.result.status is Status.PASS
    assert answer.result.request == gate_request(gate)
    codes = [attempt.code for attempt in answer.result.attempts]
    assert codes == ["worker_lost", "connection_lost"]
    assert driver_of(launcher) != first


def test_it_gives_up_without_a_result_between_two_losses(
    bare_ray: Make, scratch: Path, gate: Path
) -> None:
    launcher = bare_ray()
    asked = gate_request(gate)
    killed: set[int] = set()

    def interfere() -> None:
        for _ in range(2):
            for path in arrived(gate):
                path.unlink()
            _until(lambda: launcher._driver is not None and driver_of(launcher) not in killed)
            killed.add(driver_of(launcher))
            os.kill(driver_of(launcher), signal.SIGKILL)

    lost_twice = pytest.raises(
        LauncherError, match=r"was lost 2 times .* raylet\.out .* sweep --resume$"
    )
    with meanwhile(interfere), lost_twice:
        list(launcher.run([asked], scratch))


def test_an_error_of_our_own_is_not_taken_for_rays(bare_ray: Make) -> None:
    launcher = bare_ray()
    assert launcher.jobs
    assert launcher._driver is not None
    launcher._driver.send(ClusterReport(kind="done"))
    del launcher._nodes
    with pytest.raises(
        LauncherError, match=r"process connected to Ray failed: msgspec\.Validation"
    ):
        assert launcher.jobs
    assert launcher.jobs


def _until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until, "what the test waits for did not happen within 60 s"
        time.sleep(0.02)


def test_files_travel_with_a_request(bare_ray: Make, scratch: Path, tmp_path: Path) -> None:
    """crash_once looks for its inputs file, which is there under another name."""
    inputs = tmp_path / "inputs.toml"
    inputs.write_text("here")
    overrides = tmp_path / "overrides"
    overrides.mkdir()
    (overrides / "a.toml").write_text("[[override]]")
    asked = bare_request("crash_once", inputs_file=str(inputs), overrides_dir=str(overrides))
    (answer,) = bare_ray().run([asked], scratch)
    assert (answer.result.status, answer.result.attempts) == (Status.PASS, ())
    assert answer.result.request == asked


OWN = factories.spec("mine", build=FactoryBuild(factory="mine:build", path="/not/there"))


def test_what_no_node_can_run_is_said(bare_ray: Make, scratch: Path) -> None:
    full = bare_ray(node_timeout_seconds=0.0)
    asked: dict[str, Any]
    for launcher, asked, said in (
        (bare_ray(), {"model": OWN}, r"^node .* needs /not/there, which does not exist"),
        (bare_ray(), {"environment": "nowhere"}, "'nowhere'; the nodes have bare"),
        (full, {"memory_limit_bytes": 2**50}, r"no node of .* \(2 alive\) has a CPU"),
    ):
        with pytest.raises(LauncherError, match=said):
            list(launcher.run([bare_request("ok", **asked)], scratch))


def agreed(**nodes: tuple[Any, ...]) -> tuple[Environment, ...]:
    """What a driver makes of nodes with these environments; `trn` has NeuronCores."""
    driver: Any = Driver(
        ClusterConnection(
            jobs=1,
            environments=("default", "neuron"),
            address="",
            cache=None,
            memory_limit_bytes=2**30,
            node_timeout_seconds=1.0,
        )
    )
    known = {name: Node(name, "", {"neuron_cores": 2 * (name == "trn")}) for name in nodes}
    driver.nodes = known.values
    driver.descriptions = lambda: ((known[name], name, nodes[name]) for name in nodes)
    shared: tuple[Environment, ...] = driver.agreed()
    return shared


def test_nodes_that_differ_are_rejected_by_name() -> None:
    other, fewer = (
        factories.environment(torch="2.9.0"),
        factories.environment(digest="2", packages={}),
    )
    for second, difference in (
        ((other,), "'default' is not the same on all nodes: torch 2.13.0 -> 2.9.0 (from a to b)"),
        (
            (fewer,),
            "numpy 2.4.6 -> none (from a to b): make them equal, or remove one",
        ),
        ((), "node b has no environment 'default', node a has"),
    ):
        with pytest.raises(LauncherError, match=re.escape(difference)):
            agreed(a=(factories.environment(),), b=second)


def test_only_nodes_with_neuron_cores_need_the_environment_neuron() -> None:
    default, neuron = factories.environment(), factories.environment(name="neuron")
    assert agreed(a=(default,), trn=(default, neuron)) == (default, neuron)


def test_losses_are_told_apart_and_bounded() -> None:
    kinds = load_ray().exceptions
    flight = Flight(request=factories.request("A"), digest="d")
    for error in (
        kinds.NodeDiedError("x Node IP: 10.0.0.3, node ID: 0123456789ab. y"),
        kinds.WorkerCrashedError(),
        kinds.OutOfMemoryError("memory"),
    ):
        assert flight.may_run_again
        flight = flight.lost(*loss_of(error, kinds))
    assert not flight.may_run_again
    assert [f"{a.code}: {a.reason}" for a in flight.attempts] == [
        "node_lost: its Ray node 10.0.0.3 (01234567) was lost",
        "worker_lost: its Ray worker ended unexpectedly",
        "node_out_of_memory: Ray ended its worker, as the node ran out of memory",
    ]
    result = flight.result()
    assert (result.status, len(result.attempts)) == (Status.OOM, 2)
    assert result.error is not None
    assert result.error.code == "node_out_of_memory"
    with pytest.raises(LauncherError, match="the Ray cluster cannot run it"):
        loss_of(kinds.RuntimeEnvSetupError("no"), kinds)


def test_a_cluster_that_cannot_be_reached_is_said_in_one_line() -> None:
    for address, why in (
        (f"127.0.0.1:{free_port()}", "no Ray cluster responds at 127.0.0.1:.*Connection refused"),
        ("ray://somewhere:10001", "not an address of a Ray cluster: 'ray://somewhere:10001'"),
        ("somewhere", "not an address of a Ray cluster: 'somewhere'"),
    ):
        with pytest.raises(LauncherError, match=f"^{why}.*$"):
            _reach(address)


# In `make test`, a driver that hangs is replaced, and a node of a cluster is lost.
@pytest.mark.matrix
def test_a_cluster_of_its_own_that_dies_is_started_again(
    bare_cache: Path, scratch: Path, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its raylet is killed; Ray then ends the driver, or tells it first that the node is lost."""
    for name, value in SOON_DEAD.items():
        monkeypatch.setenv(f"RAY_{name}", str(value))
    asked = gate_request(gate)
    with RayLauncher(1, ("bare",), cache=bare_cache) as launcher:
        launcher.environments()
        first = driver_of(launcher)

        def interfere() -> None:
            (started,) = arrived(gate)
            os.kill(int(started.name.partition("-")[2]), signal.SIGKILL)
            # A worker may outlive its raylet for long enough to send a result.
            _until(lambda: len(list(gate.glob("started-*"))) > 1)
            (gate / "open").touch()

        with meanwhile(interfere):
            (answer,) = launcher.run([asked], scratch)
        assert driver_of(launcher) != first
    assert answer.result.status is Status.PASS
    losses = [a.code for a in answer.result.attempts]
    assert losses == ["connection_lost"]


SWEEP = """
import sys
from pathlib import Path
from compilewatch.environments import Environments
from compilewatch.extras.cluster.launcher import ClusterReport, RayLauncher
from tests.integration.extras.cluster.test_launcher import gate_request
cache, gate = map(Path, sys.argv[1:3])
with RayLauncher(1, ("bare",), cache=cache) as launcher:
    if "described" in sys.argv:
        described = (Environments(cache).describe("bare"),)
        launcher._nodes = ClusterReport(kind="described", environments=described, jobs=1)
    for answer in launcher.run([gate_request(gate)], gate):
        print(answer.result.status, answer.result.error and answer.result.error.code)
"""


# In `make test`, the errors of Ray are made by hand: only Ray's own monitor ends a task like this.
@pytest.mark.matrix
def test_a_node_out_of_memory_is_not_the_models_own_limit(bare_cache: Path, scratch: Path) -> None:
    """Ray's monitor is told that one per cent of memory is too much, once nodes were described."""
    variables = {"RAY_memory_usage_threshold": "0.01", "RAY_memory_monitor_refresh_ms": "100"}
    done = subprocess.run(
        [sys.executable, "-c", SWEEP, str(bare_cache), str(scratch), "described"],
        cwd=Path(__file__).parents[4],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.strip() == "oom node_out_of_memory", done.stderr


# In `make test`, drivers end at the end of every test that has one.
@pytest.mark.matrix
def test_no_process_outlives_a_killed_driver_of_a_cluster_of_its_own(
    bare_cache: Path, scratch: Path
) -> None:
    """Ray 2.60 leaves its two agents for a while; nothing of ours or of a model."""
    agents = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
    command = [sys.executable, "-c", SWEEP, str(bare_cache), str(scratch)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[4]) as driver:
        arrived(scratch)
        running = psutil.Process(driver.pid).children(recursive=True)
        spared = [p for p in running if (p.cmdline() or [""])[0].startswith(agents)]
        assert len(running) > 3
        driver.kill()
    left = [process for process in running if process not in spared and not has_ended(process.pid)]
    for process in (*spared, *left):
        with contextlib.suppress(psutil.Error):
            process.kill()
    assert left == []
