"""The order of a profile's measurements and what it makes of them, without models and torch."""

import functools
import platform
from pathlib import Path
from typing import Any

import pytest

from compilewatch.errors import LauncherError, UsageError
from compilewatch.extras.profiles import measurement, messages, records, subjects
from compilewatch.extras.profiles.messages import Round
from compilewatch.extras.profiles.records import BatchPoint
from compilewatch.extras.profiles.store import ProfileFolder
from compilewatch.records import Environment, Phase, Request, Status
from tests import factories, profiled

platform.processor()  # a program is asked once in a process, here instead of in a test

OLD = "inductor@torch-2.13"
SECONDS = {"eager": 0.010, "inductor": 0.008, OLD: 0.016, "xla": 0.020}


class Scripted:
    """Subjects that reply without a process; `asked` are the steps and targets that were asked.

    `fails` is how a step ends, by step, target and batch size.
    """

    def __init__(self, fails: dict[tuple[str, str, int], messages.ProfileFailure] | None = None):
        self.asked: list[tuple[str, str]] = []
        self.fails = fails or {}
        self.parameters = {OLD: 100}

    def environment(self, target: str) -> Environment:
        return factories.environment(name=subjects.environment_of(target))

    def start(self, subject: Any, request: Request) -> None:
        assert request.work is not None
        subject.ask = functools.partial(self.ask, subject)

    def ask(self, subject: Any, step: str, *_: object, **options: object) -> object:
        name, size = subject.target, subject.point.batch_size
        self.asked.append((step, name))
        if (failure := self.fails.get((step, name, size))) is not None:
            raise subjects.SubjectError(failure)
        taken = SECONDS[name] * (1 + 0.001 * len(self.asked))
        point = BatchPoint(batch_size=size, status=Status.PASS, numerics=profiled.MATCHES)
        if step == "prepare":
            return messages.Prepared(
                parameters=self.parameters.get(name, 100),
                trainable_parameters=100,
                model_bytes=400,
                inputs=(),
                inputs_strategy="text",
            )
        if step == "measure":
            return Round(wall_seconds=(taken,), cpu_seconds=(taken,))
        if step == "memory":
            return point, "a note of the device"
        if step == "trace":
            (subject.folder / "trace.json").write_text(name)
            return (profiled.operator_stat(name, 1, 1000.0),)
        return point


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matplotlib asks another program for the fonts of the machine."""
    monkeypatch.setattr("compilewatch.extras.profiles.report.plots", lambda _: ())


def profiled_on(
    tmp_path: Path, *targets: str, servers: Any = None, trace: bool = False, sizes: Any = (1,)
) -> records.InferenceProfile:
    options = records.InferenceOptions(targets=targets, batch_sizes=sizes, runs=1)
    request = factories.result("A").request
    profilers: Any = servers or Scripted()
    folder = ProfileFolder(tmp_path / "profile-20261122-100000-0001")
    inference = measurement.Inference(
        request, options, profilers, folder, lambda *_: None, trace=trace
    )
    return measurement.profile_model(inference, "id").profile


def test_two_environments_are_measured_in_turns_and_compared(tmp_path: Path) -> None:
    servers = Scripted()
    servers.parameters[OLD] = 90
    found = profiled_on(tmp_path, "eager", "inductor", OLD, servers=servers)
    rounds = [target for step, target in servers.asked if step == "measure"]
    assert rounds[:6] == ["eager", "inductor", OLD, OLD, "inductor", "eager"]
    assert len(rounds) == 3 * found.options.rounds
    assert [(t.target, t.software.environment) for t in found.targets] == [
        ("eager", "default"),
        ("inductor", "default"),
        (OLD, "torch-2.13"),
    ]
    eager, new, old = (target.points[0] for target in found.targets)
    assert new.speedup == pytest.approx(1.25, rel=0.05)
    assert old.speedup == pytest.approx(0.625, rel=0.05)
    judged = old.against_first
    assert judged is not None
    assert judged.verdict is records.Verdict.SLOWER
    assert judged.ratio == pytest.approx(2, rel=0.05)
    assert eager.against_first is new.against_first is None
    assert found.notes[-2] == "a note of the device"  # once
    assert found.notes[-1].startswith("the model has 90 parameters on inductor@torch-2.13 and 100")
    folder = next(tmp_path.glob("profile-*"))
    assert OLD in (folder / "report.html").read_text()
    summary = (folder / "baseline_summary_report.txt").read_text()
    assert "the time of inductor in the first environment" in summary


@pytest.mark.parametrize(
    ("targets", "main", "others"),
    [
        (("eager", "inductor", OLD), "inductor", ("eager", OLD)),
        (("eager", "xla"), "eager", ()),
    ],
)
def test_the_main_trace_and_the_table_of_operators_are_of_one_target(
    targets: tuple[str, ...], main: str, others: tuple[str, ...], tmp_path: Path
) -> None:
    profiled_on(tmp_path, *targets, trace=True)
    folder = next(tmp_path.iterdir())
    assert (folder / "profiler_traces" / "trace.json").read_text() == main
    assert (folder / "op_stats.csv").read_text().splitlines()[1].startswith(main)
    page = (folder / "report.html").read_text()
    for other in others:
        assert (folder / "profiler_traces" / other / "trace.json").read_text() == other
        assert f'href="profiler_traces/{other}/trace.json"' in page
    assert len(list(folder.glob("profiler_traces/**/trace.json"))) == 1 + len(others)


def test_a_target_that_runs_out_of_memory_costs_its_own_points_only(tmp_path: Path) -> None:
    oom = messages.ProfileFailure(status=Status.OOM, phase=Phase.COMPILE, detail="9 GiB of 8 GiB")
    servers = Scripted({("first_call", "inductor", 2): oom})
    found = profiled_on(tmp_path, "eager", "inductor", servers=servers, sizes=(1, 2, 4))
    eager, inductor = found.targets
    assert [point.status.value for point in eager.points] == ["pass"] * 3
    assert [point.status.value for point in inductor.points] == ["pass", "oom", "skipped"]
    assert inductor.points[2].detail == "not tried: batch 2 ended with oom"
    assert all(point.latency is not None for point in eager.points)


def test_a_device_that_is_not_there_ends_the_profile(tmp_path: Path) -> None:
    lacks = messages.ProfileFailure(
        status=Status.UNSUPPORTED, phase=Phase.SETUP, detail="this machine has no CUDA device"
    )
    with pytest.raises(LauncherError, match="environment 'default': this machine has no CUDA"):
        profiled_on(tmp_path, "eager", servers=Scripted({("prepare", "eager", 1): lacks}))
    assert not list(tmp_path.iterdir())


def test_targets_name_environments_and_eager_mode_of_the_same_one_is_the_reference() -> None:
    targets = ("eager", "eager@torch-2.13", "inductor", OLD, "xla")
    assert records.eager_of(OLD, targets) == "eager@torch-2.13"
    assert records.eager_of("xla", targets) == "eager"
    assert records.eager_of(OLD, ("eager", OLD)) == "eager"
    assert records.eager_of("inductor", (OLD, "inductor")) is None
    assert subjects.canonical("inductor@default") == "inductor"
    assert subjects.canonical("xla@xla") == "xla"
    assert subjects.canonical(OLD) == OLD
    assert subjects.environment_of("eager@torch-2.13") == "torch-2.13"


def test_wrong_targets() -> None:
    for targets, device, said in (
        (("inductor", "inductor@default"), "cpu", "once"),
        (("neuron",), "cpu", "profile neuron"),
        (("inductor@",), "cpu", "names no environment"),
        (("eager", "xla"), "cuda", "on the CPU only"),
    ):
        with pytest.raises(UsageError, match=said):
            subjects.check_targets(targets, device)


def test_only_a_busy_machine_gets_a_note() -> None:
    assert measurement.busy_note(profiled.MACHINE, 0.4) is None
    assert "load of 5.0 on 2 cores" in str(measurement.busy_note(profiled.MACHINE, 5.0))
