"""A worker that declares a CUDA device answers as one that has it would."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from compilewatch.contract.targets import declared
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import (
    Dtype,
    FactoryBuild,
    Mode,
    ModelSpec,
    Phase,
    Request,
    Result,
    Status,
    Target,
    Tier,
)

pytestmark = [pytest.mark.torch, pytest.mark.matrix]

CASES = Path(__file__).parents[3] / "cases"
DEVICES = ("cpu", "cuda", "cuda:T4")
MODELS = (
    *("ByCapability", "ByDevice", "AcrossDevices", "Moves", "ReadsInput", "ReadsWeights"),
    *("NeedsDevice", "Scalars", "Constant", "StoresScalars", "PadsByTwo"),
)

Key = tuple[str, str, str, Mode, Tier]
Get = Callable[..., Result]


REPEATS = 16
"""A race that aborts every fourth of these children is noticed."""


def _request(name: str, target: Target, tier: Tier = Tier.AUTO, *, repeat: str = "") -> Request:
    build = FactoryBuild(
        factory=f"for_devices:{name}", path=str(CASES), inputs="for_devices:inputs"
    )
    return Request(
        model=ModelSpec(source="test", name=name + repeat, build=build),
        target=target,
        key=f"{name}{repeat}-{target.name}-{target.device}-{target.mode}-{tier}".ljust(16, "-"),
        device=declared(target.device),
        tier=tier,
        keep_artifacts=False,
    )


def _requests() -> list[Request]:
    asked = [_request(name, Target(device=device)) for name in MODELS for device in DEVICES[:2]]
    asked += [_request(name, Target(device="cuda:T4")) for name in ("ByCapability", "ByDevice")]
    train = Target(device="cuda", mode=Mode.TRAIN)
    asked += [_request(name, train) for name in ("Moves", "ReadsWeights")]
    asked += [_request("Moves", train, repeat=f" {n}") for n in range(REPEATS)]
    export = Target(name="export", device="cuda")
    asked += [_request(name, export) for name in ("Constant", "AcrossDevices")]
    asked += [_request(name, export) for name in ("BranchesOnWeights", "ReadsWeights")]
    asked += [_request("BranchesOnWeights", Target(name="export"))]
    asked += [_request("ReadsWeights", Target(device="cuda"), Tier.FAKE)]
    asked += [_request("Moves", Target(device="cuda"), Tier.REAL)]
    asked += [_request("Moves", Target(device="cuda", dtype=Dtype.FLOAT16))]
    return asked


@pytest.fixture(scope="module")
def results(
    warm_launcher: LocalLauncher, tmp_path_factory: pytest.TempPathFactory
) -> dict[Key, Result]:
    """Every request, by model, target, device, mode and tier.

    Each device needs a server of its own, the real one too: only for `cuda` is it worth a warm-up.
    """
    parts: dict[str, list[Request]] = {"cpu": [], "cuda": [], "few": []}
    for asked in _requests():
        few = asked.tier is Tier.REAL or asked.target.device == "cuda:T4"
        parts["few" if few else asked.target.device].append(asked)
    scratch = tmp_path_factory.mktemp("scratch")
    done = list(warm_launcher.run(parts["cpu"], scratch))
    for part, single in (("cuda", False), ("few", True)):
        # Of two children at a time, few meet the race that REPEATS is for.
        with LocalLauncher(1, single=single) as launcher:
            done += launcher.run(parts[part], scratch)
    return {_key(each.result.request): each.result for each in done}


def _key(request: Request) -> Key:
    target = request.target
    device = f"{target.device}/{target.dtype}" if target.dtype != "float32" else target.device
    return request.model.name, target.name, device, target.mode, request.tier


@pytest.fixture
def of(results: dict[Key, Result]) -> Get:
    def get(
        name: str,
        device: str = "cuda",
        target: str = "dynamo",
        mode: Mode = Mode.EVAL,
        tier: Tier = Tier.AUTO,
    ) -> Result:
        return results[(name, target, device, mode, tier)]

    return get


PASS, BREAK = Status.PASS, Status.GRAPH_BREAK


@pytest.mark.parametrize(
    ("name", "statuses"), [("ByCapability", [PASS, PASS, BREAK]), ("ByDevice", [BREAK, PASS, PASS])]
)
def test_the_device_and_its_capability_decide(of: Get, name: str, statuses: list[Status]) -> None:
    assert [of(name, device).status for device in DEVICES] == statuses


def test_mixed_devices_fail_in_eager_mode_as_on_a_device(of: Get) -> None:
    assert of("AcrossDevices", "cpu").status is Status.PASS
    failed = of("AcrossDevices")
    assert (failed.status, failed.phase) == (Status.ERROR, Phase.EAGER)
    assert "same device" in failed.detail
    assert of("Moves").status is Status.PASS


def test_values_of_inputs_are_known_on_the_device(of: Get) -> None:
    on_cpu, on_device = of("ReadsInput", "cpu"), of("ReadsInput")
    assert not on_device.probed
    assert [b.fingerprint for b in on_device.breaks] == [b.fingerprint for b in on_cpu.breaks]
    assert on_device.graphs == on_cpu.graphs


def test_a_probe_gives_the_first_reason_where_values_are_missing(of: Get) -> None:
    on_cpu, probed = of("ReadsWeights", "cpu"), of("ReadsWeights")
    assert not on_cpu.probed
    assert (probed.probed, probed.status, probed.tier) == (True, Status.GRAPH_BREAK, Tier.FAKE)
    assert [b.fingerprint for b in probed.breaks] == [on_cpu.breaks[0].fingerprint]
    assert probed.unattributed == 0
    assert probed.attempts[0].code == "fake_unsupported"
    assert "or more" in probed.detail
    assert of("Scalars").breaks[0].code == of("Scalars", "cpu").breaks[0].code


def test_what_dynamo_itself_rejects_is_its_verdict_on_every_device(of: Get) -> None:
    """An operator that fails on its own fake tensors, and symbols of sizes that it lost."""
    codes = []
    for device in DEVICES[:2]:
        fails, lost = of("StoresScalars", device), of("PadsByTwo", device)
        assert (fails.status, fails.phase) == (Status.ERROR, Phase.COMPILE)
        assert fails.is_verdict
        assert lost.status is Status.GRAPH_BREAK
        assert not lost.fullgraph.accepted
        codes.append((fails.error.code, lost.fullgraph.code))
    assert codes[0] == codes[1]


def test_an_error_of_the_cpu_alone_is_not_one_of_the_device(of: Get) -> None:
    on_cpu, on_device = of("NeedsDevice", "cpu"), of("NeedsDevice")
    assert (on_cpu.status, on_cpu.phase) == (Status.ERROR, Phase.EAGER)
    assert on_device.status is Status.UNSUPPORTED
    assert "fake tensors of cuda cannot show it" in on_device.detail
    assert "does not support CPU" in on_device.detail
    # Without a second attempt, there is no verdict either.
    alone = of("ReadsWeights", tier=Tier.FAKE)
    assert alone.status is Status.UNSUPPORTED
    assert "fake tensors of cuda cannot show it" in alone.detail


def test_real_tensors_need_a_real_device_and_training_a_cuda_build(of: Get) -> None:
    real, trained = of("Moves", tier=Tier.REAL), of("Moves", mode=Mode.TRAIN)
    if torch.cuda.is_available():
        assert real.status is Status.PASS
    else:
        assert real.status is Status.UNSUPPORTED
        assert "need a CUDA device" in real.detail
    if torch.version.cuda is None:
        assert trained.status is Status.UNSUPPORTED
        assert "env create cuda" in trained.detail
    else:
        assert trained.status is Status.PASS, trained.detail
        assert of("ReadsWeights", mode=Mode.TRAIN).breaks[0].gb_id == "GB0170"
    assert (of("Moves", "cuda/float16").dtype, of("Moves").dtype) == ("float16", "float32")


def test_threads_of_the_backward_share_one_pool(of: Get) -> None:
    """Autograd has a thread for each of eight devices, which all set a thread count at once."""
    if torch.version.cuda is None:
        pytest.skip("a CPU build captures no backward for a declared device")
    trained = [of(f"Moves {n}", mode=Mode.TRAIN) for n in range(REPEATS)]
    assert [(each.detail, each.attempts) for each in trained] == [("one graph", ())] * REPEATS


def test_export_computes_constants_of_the_device(of: Get) -> None:
    assert of("Constant", target="export").status is Status.PASS
    assert of("AcrossDevices", target="export").phase is Phase.EAGER


def test_export_rejects_a_guard_on_weights_on_every_device(of: Get) -> None:
    on_cpu = of("BranchesOnWeights", "cpu", target="export")
    on_device = of("BranchesOnWeights", target="export")
    assert (on_cpu.status, on_cpu.phase) == (Status.ERROR, Phase.COMPILE)
    assert (on_device.status, on_device.phase) == (Status.ERROR, Phase.COMPILE)
    assert on_device.error.code == "data_dependent_guard"
    # This one has a constant whose value is not known: torch might have used it.
    assert of("ReadsWeights", target="export").status is Status.UNSUPPORTED
