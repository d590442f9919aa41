"""The order of a profile's measurements and what it makes of them, without models and torch."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compilewatch.errors import UsageError
from compilewatch.extras.profiles.measurement import (
    Job,
    SubjectError,
    canonical,
    check_targets,
    environment_of,
    profile_model,
)
from compilewatch.extras.profiles.messages import (
    END,
    PREPARE,
    FirstCall,
    MemoryUse,
    Order,
    Prepared,
    Round,
)
from compilewatch.extras.profiles.records import (
    InferenceOptions,
    InferenceProfile,
    Memory,
    OpStat,
    ProfileFailure,
    Segments,
    Verdict,
    eager_of,
)
from compilewatch.extras.profiles.store import ProfileFolder
from compilewatch.records import Phase, Status
from tests import factories, profiled

platform.processor()  # a program is asked once in a process, here instead of in a test

OLD = "inductor@torch-2.13"
SECONDS = {"eager": 0.010, "inductor": 0.008, OLD: 0.016, "xla": 0.020}


class Scripted:
    """Replies to orders as the profiling servers of two environments do, and keeps the orders.

    `fails` may raise SubjectError for an order of a target.
    """

    def __init__(self, fails: Callable[[str, Order], None] = lambda *_: None) -> None:
        self.asked: list[tuple[str, str]] = []
        self.fails = fails
        self.parameters = {OLD: 100}
        self._targets: dict[int, str] = {}

    def of(self, target: str) -> _Server:
        return _Server(self, target)

    def reply(self, target: str, order: Order) -> object:
        name = self._targets.setdefault(order.subject, target)
        self.asked.append((order.step, name))
        self.fails(name, order)
        taken = SECONDS[name] * (1 + 0.001 * len(self.asked))
        segments = Segments(
            calls=5,
            call_seconds=0.01,
            graph_seconds=0.01,
            guard_seconds=0.0,
            eager_seconds=0.0,
            python_seconds=0.0,
        )
        replies: dict[str, object] = {
            "first_call": FirstCall(seconds=1.0, graphs=1, breaks=()),
            "measure": Round(wall_seconds=(taken,), cpu_seconds=(taken,)),
            "memory": MemoryUse(memory=Memory(rss_peak_bytes=10**8)),
            "compare": profiled.MATCHES,
            "segments": (segments, ()),
            "recompile": FirstCall(seconds=0.5),
            END: None,
        }
        if order.step == PREPARE:
            return self._prepared(name, order)
        return self._traced(name) if order.step == "trace" else replies[order.step]

    def _prepared(self, name: str, order: Order) -> Prepared:
        assert order.job is not None
        self._folder = Path(order.job.folder)
        return Prepared(
            load_seconds=0.1,
            parameters=self.parameters.get(name, 100),
            trainable_parameters=100,
            model_bytes=400,
            inputs=(),
            strategy="text",
            batch_size=order.job.batch_size,
        )

    def _traced(self, name: str) -> tuple[OpStat, ...]:
        (self._folder.parent / f"{name}-{self._number(name)}" / "trace.json").write_text(name)
        return (OpStat(name=name, calls=1, self_cpu_seconds=1e-3, total_cpu_seconds=1e-3),)

    def _number(self, name: str) -> int:
        return next(number for number, target in self._targets.items() if target == name)


class _Server:
    def __init__(self, all_of: Scripted, target: str) -> None:
        self.all_of, self.target = all_of, target
        name = environment_of(target)
        self.environment = factories.environment(name=name)

    def ask(self, order: Order, kind: type[Any]) -> Any:
        return self.all_of.reply(self.target, order)


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matplotlib asks another program for the fonts of the machine."""
    monkeypatch.setattr("compilewatch.extras.profiles.report.plots", lambda _: ())


def profiled_on(
    tmp_path: Path, *targets: str, servers: Any = None, trace: bool = False, sizes: Any = (1,)
) -> InferenceProfile:
    options = InferenceOptions(targets=targets, batch_sizes=sizes, runs=1)
    job = Job(request=factories.result("A").request, options=options, trace=trace)
    profilers: Any = servers or Scripted()
    folder = ProfileFolder(tmp_path / "profile-20261122-100000-0001")
    return profile_model(job, profilers, folder, lambda *_: None, "id").profile


def test_two_environments_are_measured_in_turns_and_compared(tmp_path: Path) -> None:
    servers: Any = Scripted()
    found = profiled_on(tmp_path, "eager", "inductor", OLD, servers=servers)
    rounds = [target for order, target in servers.asked if order == "measure"]
    assert rounds[:6] == ["eager", "inductor", OLD, OLD, "inductor", "eager"]
    assert len(rounds) == 3 * found.options.rounds
    eager, new, old = found.targets
    assert [t.target for t in found.targets] == ["eager", "inductor", OLD]
    assert [t.software.environment for t in found.targets] == ["default", "default", "torch-2.13"]
    assert new.points[0].speedup == pytest.approx(1.25, rel=0.05)
    assert old.points[0].speedup == pytest.approx(0.625, rel=0.05)
    judged = old.points[0].against_first
    assert judged is not None
    assert judged.verdict is Verdict.SLOWER
    assert judged.ratio == pytest.approx(2, rel=0.05)
    assert eager.points[0].against_first is None
    assert new.points[0].against_first is None
    report = (tmp_path / found.id.replace("id", "profile-20261122-100000-0001")).joinpath
    assert f"{OLD}" in report("report.html").read_text()
    assert "takes 2.00 × the time of inductor" in report("baseline_summary_report.txt").read_text()


def test_another_model_in_another_environment_is_said(tmp_path: Path) -> None:
    servers: Any = Scripted()
    servers.parameters[OLD] = 90
    found = profiled_on(tmp_path, "inductor", OLD, servers=servers)
    assert (
        "the model has 90 parameters on inductor@torch-2.13 and 100 on inductor" in found.notes[-1]
    )


@pytest.mark.parametrize(
    ("targets", "main", "others"),
    [
        (("eager", "inductor"), "inductor", ("eager",)),
        (("inductor", "eager"), "inductor", ("eager",)),
        (("eager", "inductor", OLD), "inductor", ("eager", OLD)),
        (("eager", "xla"), "eager", ()),
        (("eager",), "eager", ()),
    ],
)
def test_the_main_trace_and_the_table_of_operators_are_of_one_target(
    targets: tuple[str, ...], main: str, others: tuple[str, ...], tmp_path: Path
) -> None:
    found = profiled_on(tmp_path, *targets, trace=True)
    folder = next(tmp_path.iterdir())
    assert (folder / "profiler_traces" / "trace.json").read_text() == main
    assert (folder / "op_stats.csv").read_text().splitlines()[1].startswith(main)
    page = (folder / "report.html").read_text()
    for other in others:
        assert (folder / "profiler_traces" / other / "trace.json").read_text() == other
        assert f'href="profiler_traces/{other}/trace.json"' in page
    assert sum("profiler_traces" in name for name in found.files) == 1 + len(others)


def test_a_target_that_runs_out_of_memory_costs_its_own_points_only(tmp_path: Path) -> None:
    def fails(target: str, order: Order) -> None:
        if target == "inductor" and order.step == "first_call" and order.subject == 4:
            raise SubjectError(
                ProfileFailure(status=Status.OOM, phase=Phase.COMPILE, detail="9 GiB of 8 GiB")
            )

    servers: Any = Scripted(fails)
    found = profiled_on(tmp_path, "eager", "inductor", servers=servers, sizes=(1, 2, 4))
    eager, inductor = found.targets
    assert [point.status.value for point in eager.points] == ["pass"] * 3
    assert [point.status.value for point in inductor.points] == ["pass", "oom", "skipped"]
    assert inductor.points[2].detail == "not tried: batch 2 already ran out of memory"
    assert all(point.latency is not None for point in eager.points)


def test_eager_mode_of_the_same_environment_is_the_reference() -> None:
    targets = ("eager", "eager@torch-2.13", "inductor", OLD, "xla")
    assert eager_of(OLD, targets) == "eager@torch-2.13"
    assert eager_of("xla", targets) == "eager"
    assert eager_of(OLD, ("eager", OLD)) == "eager"
    assert eager_of("inductor", (OLD, "inductor")) is None


def test_a_default_environment_is_not_part_of_a_name() -> None:
    assert canonical("inductor@default") == "inductor"
    assert canonical("xla@xla") == "xla"
    assert canonical(OLD) == OLD
    assert environment_of("eager@torch-2.13") == "torch-2.13"


@pytest.mark.parametrize(
    ("targets", "device", "said"),
    [
        (("inductor", "inductor@default"), "cpu", "once"),
        (("eager", "eager"), "cpu", "once"),
        ((), "cpu", "once"),
        (("neuron",), "cpu", "profile neuron"),
        (("inductor@",), "cpu", "names no environment"),
        (("dynamo@torch-2.13",), "cpu", "known: eager"),
        (("eager", "xla"), "cuda", "on the CPU only"),
    ],
)
def test_wrong_targets(targets: tuple[str, ...], device: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_targets(targets, device)
