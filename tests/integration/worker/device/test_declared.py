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
MODELS = (
    *("ByDevice", "AcrossDevices", "Moves", "ReadsInput", "ReadsWeights"),
    *("NeedsDevice", "Scalars", "Constant", "StoresScalars", "PadsByTwo"),
)
REPEATS = 8
"""A race that aborts every second of these children is noticed."""

ON_DEVICE = Target(device="cuda")
TRAIN = Target(device="cuda", mode=Mode.TRAIN)
EXPORT = Target(device="cuda", name="export")
EXPORT_ON_CPU = Target(name="export")
HALF = Target(device="cuda", dtype=Dtype.FLOAT16)

Get = Callable[..., Result]


def _request(name: str, target: Target, tier: Tier = Tier.AUTO) -> Request:
    factory = f"for_devices:{name.partition(' ')[0]}"
    build = FactoryBuild(factory=factory, path=str(CASES), inputs="for_devices:inputs")
    return Request(
        model=ModelSpec(source="test", name=name, build=build),
        target=target,
        key=f"{name}-{target}-{tier}",
        device=declared(target.device),
        tier=tier,
        keep_artifacts=False,
    )


@pytest.fixture(scope="module")
def results(
    warm_launcher: LocalLauncher, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Result]:
    """All that the tests ask for, by key."""
    on_cpu = [_request(name, Target()) for name in MODELS]
    on_cpu.append(_request("BranchesOnWeights", EXPORT_ON_CPU))
    asked = [_request(name, ON_DEVICE) for name in MODELS]
    asked += [_request(name, TRAIN) for name in ("Moves", "ReadsWeights")]
    asked += [_request(f"Moves {n}", TRAIN) for n in range(REPEATS)]
    exported = ("Constant", "AcrossDevices", "BranchesOnWeights", "ReadsWeights")
    asked += [_request(name, EXPORT) for name in exported]
    asked += [_request("ReadsWeights", ON_DEVICE, Tier.FAKE), _request("Moves", HALF)]
    scratch = tmp_path_factory.mktemp("scratch")
    done = list(warm_launcher.run(on_cpu, scratch))
    # Of two children at a time, few meet the race that REPEATS is for.
    with LocalLauncher(1) as launcher:
        done += launcher.run(asked, scratch)
    return {completed.result.request.key: completed.result for completed in done}


@pytest.fixture
def of(results: dict[str, Result]) -> Get:
    def get(name: str, target: Target = ON_DEVICE, tier: Tier = Tier.AUTO) -> Result:
        return results[_request(name, target, tier).key]

    return get


@pytest.fixture
def on_cpu(of: Get) -> Get:
    return lambda name: of(name, Target())


def test_the_device_and_the_requested_type_decide(of: Get, on_cpu: Get) -> None:
    assert on_cpu("ByDevice").status is Status.GRAPH_BREAK
    assert of("ByDevice").status is Status.PASS
    assert (of("Moves", HALF).dtype, of("Moves").dtype) == ("float16", "float32")


def test_mixed_devices_fail_in_eager_mode_as_on_a_device(of: Get, on_cpu: Get) -> None:
    assert on_cpu("AcrossDevices").status is Status.PASS
    failed = of("AcrossDevices")
    assert (failed.status, failed.phase) == (Status.ERROR, Phase.EAGER)
    assert "same device" in failed.detail
    assert of("Moves").status is Status.PASS


def test_values_of_inputs_are_known_on_the_device(of: Get, on_cpu: Get) -> None:
    known, real = of("ReadsInput"), on_cpu("ReadsInput")
    assert not known.probed
    assert [b.fingerprint for b in known.breaks] == [b.fingerprint for b in real.breaks]
    assert known.graphs == real.graphs


def test_a_probe_gives_the_first_reason_where_values_are_missing(of: Get, on_cpu: Get) -> None:
    real, probed = on_cpu("ReadsWeights"), of("ReadsWeights")
    assert not real.probed
    assert (probed.probed, probed.status, probed.tier) == (True, Status.GRAPH_BREAK, Tier.FAKE)
    assert [b.fingerprint for b in probed.breaks] == [real.breaks[0].fingerprint]
    assert probed.unattributed == 0
    assert probed.attempts[0].code == "fake_unsupported"
    assert "or more" in probed.detail
    assert of("Scalars").breaks[0].code == on_cpu("Scalars").breaks[0].code


def test_what_dynamo_itself_rejects_is_its_verdict_on_every_device(of: Get, on_cpu: Get) -> None:
    """An operator that fails on its own fake tensors, and symbols of sizes that it lost."""
    codes = []
    for get in (of, on_cpu):
        fails, lost = get("StoresScalars"), get("PadsByTwo")
        assert (fails.status, fails.phase) == (Status.ERROR, Phase.COMPILE)
        assert fails.is_verdict
        assert lost.status is Status.GRAPH_BREAK
        assert not lost.fullgraph.accepted
        codes.append((fails.error.code, lost.fullgraph.code))
    assert codes[0] == codes[1]


def test_an_error_of_the_cpu_alone_is_not_one_of_the_device(of: Get, on_cpu: Get) -> None:
    real, unknown = on_cpu("NeedsDevice"), of("NeedsDevice")
    assert (real.status, real.phase) == (Status.ERROR, Phase.EAGER)
    assert unknown.status is Status.UNSUPPORTED
    assert "fake tensors of cuda cannot show it" in unknown.detail
    assert "does not support CPU" in unknown.detail
    # Without a second attempt, there is no verdict either.
    alone = of("ReadsWeights", tier=Tier.FAKE)
    assert alone.status is Status.UNSUPPORTED
    assert "fake tensors of cuda cannot show it" in alone.detail


def test_training_needs_a_cuda_build_and_threads_of_the_backward_share_one_pool(of: Get) -> None:
    """Autograd has a thread for each of eight devices, which all set a thread count at once."""
    trained = of("Moves", TRAIN)
    if torch.version.cuda is None:
        assert trained.status is Status.UNSUPPORTED
        assert "env create cuda" in trained.detail
        return
    assert trained.status is Status.PASS, trained.detail
    assert of("ReadsWeights", TRAIN).breaks[0].gb_id == "GB0170"
    repeats = [of(f"Moves {n}", TRAIN) for n in range(REPEATS)]
    assert [(each.detail, each.attempts) for each in repeats] == [("one graph", ())] * REPEATS


def test_export_computes_constants_and_rejects_a_guard_on_weights(of: Get) -> None:
    assert of("Constant", EXPORT).status is Status.PASS
    assert of("AcrossDevices", EXPORT).phase is Phase.EAGER
    for target in (EXPORT, EXPORT_ON_CPU):
        rejected = of("BranchesOnWeights", target)
        assert (rejected.status, rejected.phase) == (Status.ERROR, Phase.COMPILE)
        assert rejected.error.code == "data_dependent_guard"
    # This one has a constant whose value is not known: torch might have used it.
    assert of("ReadsWeights", EXPORT).status is Status.UNSUPPORTED
