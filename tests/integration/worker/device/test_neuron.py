"""A worker that declares a Neuron device: models of Transformers, and what differs from CUDA."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from compilewatch.contract.targets import declared
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import (
    Depth,
    Dtype,
    FactoryBuild,
    Mode,
    Request,
    Result,
    Status,
    Target,
    Tier,
)
from tests import factories

pytestmark = [pytest.mark.torch, pytest.mark.matrix]

CASES = Path(__file__).parents[3] / "cases"
NAMES = ("BertModel", "LlamaForCausalLM", "T5Model", "MixtralForCausalLM", "LongformerModel")
TARGETS = {
    "eval": Target(device="neuron", dtype=Dtype.CONFIG),
    "train": Target(device="neuron", dtype=Dtype.CONFIG, mode=Mode.TRAIN),
    "export": Target(device="neuron", dtype=Dtype.CONFIG, name="export"),
}

Get = Callable[..., Result]


def _request(name: str, target: Target, tier: Tier = Tier.AUTO) -> Request:
    asked = factories.request(
        name,
        target=target,
        key=f"{name}-{target}-{tier}",
        device=declared(target.device),
        depth=Depth.REDUCED,
        tier=tier,
        keep_artifacts=False,
    )
    if name in NAMES:
        return asked
    build = FactoryBuild(
        factory=f"for_devices:{name}", path=str(CASES), inputs="for_devices:inputs"
    )
    return msgspec.structs.replace(
        asked, model=factories.spec(name, source="test", build=build, architecture=None)
    )


@pytest.fixture(scope="module")
def of(tmp_path_factory: pytest.TempPathFactory) -> Get:
    requests = [_request(name, target) for name in NAMES for target in TARGETS.values()]
    own = ("ByDevice", "AcrossDevices", "StoresScalars", "Constant")
    requests += [_request(name, TARGETS["eval"]) for name in own]
    requests += [_request("Constant", TARGETS["export"]), _request("Moves", TARGETS["train"])]
    requests.append(_request("Moves", TARGETS["eval"], Tier.REAL))
    with LocalLauncher(2) as launcher:
        done = list(launcher.run(requests, tmp_path_factory.mktemp("scratch")))
    results = {completed.result.request.key: completed.result for completed in done}

    def get(name: str, target: str = "eval", tier: Tier = Tier.AUTO) -> Result:
        return results[_request(name, TARGETS[target], tier).key]

    return get


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES[:4])
def test_models_compile_on_the_device_forward_and_backward(of: Get, name: str, target: str) -> None:
    """Twelve children: only real ones ask torch and Transformers for what the device is."""
    result = of(name, target)
    assert result.status is Status.PASS, result.detail
    assert not result.probed
    assert result.attempts == ()
    assert result.dtype == ("bfloat16" if name == "MixtralForCausalLM" else "float32")


def test_a_model_that_reads_values_of_weights_is_probed(of: Get) -> None:
    known, probed = of("LongformerModel"), of("LongformerModel", "train")
    assert (known.graph_breaks, known.probed) == (4, False), known.detail
    assert (probed.graph_breaks, probed.probed) == (1, True), probed.detail
    assert probed.breaks[0].fingerprint in {each.fingerprint for each in known.breaks}


def test_the_device_decides_as_a_cuda_device_does(of: Get) -> None:
    assert of("ByDevice").status is Status.PASS
    mixed = of("AcrossDevices")
    assert mixed.status is Status.ERROR
    assert "same device" in mixed.detail
    # Dynamo itself rejects these reads, whatever the device; they are no limit of fake tensors.
    assert of("StoresScalars").is_verdict
    assert of("Constant").status is of("Constant", "export").status is Status.PASS
    assert of("Moves", "train").status is Status.PASS


def test_real_tensors_need_the_device_itself(of: Get) -> None:
    result = of("Moves", tier=Tier.REAL)
    assert result.status is Status.UNSUPPORTED
    assert result.detail == (
        "real tensors on neuron need the device, and this machine has none: --tier auto needs none"
    )
