"""The order of a profile's measurements and what it makes of them, without models and torch."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.errors import UsageError
from compilewatch.extras.profiles.measurement import (
    Inference,
    SubjectError,
    busy_note,
    canonical,
    check_targets,
    environment_of,
    profile_key,
    profile_model,
    suggested_settings,
)
from compilewatch.extras.profiles.messages import (
    END,
    PREPARE,
    Order,
    Prepared,
    ProfileFailure,
    Round,
)
from compilewatch.extras.profiles.records import (
    BatchPoint,
    InferenceOptions,
    InferenceProfile,
    Memory,
    OpStat,
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
        if order.job is not None:
            self._folder = Path(order.job.folder)
            self._point = BatchPoint(batch_size=order.job.batch_size, status=Status.PASS)
        taken = SECONDS[name] * (1 + 0.001 * len(self.asked))
        point = msgspec.structs.replace(self._point, numerics=profiled.MATCHES)
        memory = msgspec.structs.replace(point, memory=Memory(rss_peak_bytes=10**8))
        replies: dict[str, Callable[[], object]] = {
            PREPARE: lambda: self._prepared(name),
            "measure": lambda: Round(wall_seconds=(taken,), cpu_seconds=(taken,)),
            "memory": lambda: (memory, "a note of the device"),
            "trace": lambda: self._traced(name),
            END: lambda: None,
        }
        return replies.get(order.step, lambda: point)()

    def _prepared(self, name: str) -> Prepared:
        return Prepared(
            parameters=self.parameters.get(name, 100),
            trainable_parameters=100,
            model_bytes=400,
            inputs=(),
            inputs_strategy="text",
        )

    def _traced(self, name: str) -> tuple[OpStat, ...]:
        number = next(number for number, target in self._targets.items() if target == name)
        (self._folder.parent / f"{name}-{number}" / "trace.json").write_text(name)
        return (OpStat(name=name, calls=1, self_cpu_seconds=1e-3, total_cpu_seconds=1e-3),)


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
    request = factories.result("A").request
    profilers: Any = servers or Scripted()
    folder = ProfileFolder(tmp_path / "profile-20261122-100000-0001")
    inference = Inference(request, options, profilers, folder, lambda *_: None, trace=trace)
    return profile_model(inference, "id").profile


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
    assert found.notes[-1] == "a note of the device"  # once
    folder = next(tmp_path.glob("profile-*"))
    assert OLD in (folder / "report.html").read_text()
    summary = (folder / "baseline_summary_report.txt").read_text()
    assert "takes 2.00 × the time of inductor" in summary


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


def test_the_machine_and_the_options_are_in_the_key_and_the_software_is_not() -> None:
    request, options = factories.result("A").request, InferenceOptions()
    key = profile_key(request, options, profiled.MACHINE)
    newer = msgspec.structs.replace(request, key="of another torch")
    assert profile_key(newer, options, profiled.MACHINE) == key
    other = msgspec.structs.replace(profiled.MACHINE, cpu="Another CPU")
    threads = msgspec.structs.replace(options, threads=2)
    model = factories.result("B").request
    assert profile_key(request, options, other) != key
    assert profile_key(request, threads, profiled.MACHINE) != key
    assert profile_key(model, options, profiled.MACHINE) != key


def test_settings_are_those_that_torch_suggests() -> None:
    text = "set torch._dynamo.config.capture_dynamic_output_shape_ops = True"
    other, none = (msgspec.structs.replace(profiled.COST, reason=r) for r in (text, "none"))
    assert suggested_settings([profiled.COST, other, none, profiled.COST]) == [
        "capture_scalar_outputs",
        "capture_dynamic_output_shape_ops",
    ]


def test_only_a_busy_machine_gets_a_note() -> None:
    assert busy_note(profiled.MACHINE, 0.4) is None
    assert busy_note(profiled.MACHINE, None) is None
    assert "load of 5.0 on 2 cores" in str(busy_note(profiled.MACHINE, 5.0))
