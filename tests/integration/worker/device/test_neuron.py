"""A worker that declares a Neuron device: models of Transformers, and what differs from CUDA."""

import os
import subprocess
import sys
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
from tests.doubles import NATIVE, with_python_path

pytestmark = [pytest.mark.torch, pytest.mark.matrix]

CASES = Path(__file__).parents[3] / "cases"
REAL = ("ByDevice", "AcrossDevices", "ReadsWeights")
"""Evaluated with real tensors, too, on the device of a double of TorchNeuron."""

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


def _answers(requests: list[Request], scratch: Path) -> Get:
    with LocalLauncher(2) as launcher:
        done = list(launcher.run(requests, scratch))
    results = {completed.result.request.key: completed.result for completed in done}

    def get(name: str, target: str = "eval", tier: Tier = Tier.AUTO) -> Result:
        return results[_request(name, TARGETS[target], tier).key]

    return get


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Get:
    requests = [_request(name, target) for name in NAMES for target in TARGETS.values()]
    requests.pop()  # Longformer on export finds nothing that the others do not
    return _answers(requests, tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Get:
    requests = [_request(name, TARGETS["eval"]) for name in (*REAL, "StoresScalars", "Constant")]
    requests += [_request("Constant", TARGETS["export"]), _request("Moves", TARGETS["train"])]
    requests.append(_request("Moves", TARGETS["eval"], Tier.REAL))
    return _answers(requests, tmp_path_factory.mktemp("cases"))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Get:
    requests = [_request(name, TARGETS["eval"], Tier.REAL) for name in REAL]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", with_python_path(NATIVE))
        patch.setenv("NEURON_DOUBLE_CORES", "1")
        return _answers(requests, tmp_path_factory.mktemp("real"))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES[:4])
def test_models_compile_on_the_device_forward_and_backward(
    models: Get, name: str, target: str
) -> None:
    """Twelve children: only real ones ask torch and Transformers for what the device is."""
    result = models(name, target)
    assert result.status is Status.PASS, result.detail
    assert not result.probed
    assert result.attempts == ()
    assert result.dtype == ("bfloat16" if name == "MixtralForCausalLM" else "float32")


def test_a_model_that_reads_values_of_weights_is_probed(models: Get) -> None:
    known, probed = models("LongformerModel"), models("LongformerModel", "train")
    assert (known.graph_breaks, known.probed) == (4, False), known.detail
    assert (probed.graph_breaks, probed.probed) == (1, True), probed.detail
    assert probed.breaks[0].fingerprint in {each.fingerprint for each in known.breaks}


def test_the_device_decides_as_a_cuda_device_does(cases: Get) -> None:
    assert cases("ByDevice").status is Status.PASS
    mixed = cases("AcrossDevices")
    assert mixed.status is Status.ERROR
    assert "same device" in mixed.detail
    # Dynamo itself rejects these reads, whatever the device; they are no limit of fake tensors.
    assert cases("StoresScalars").is_verdict
    assert cases("Constant").status is cases("Constant", "export").status is Status.PASS
    assert cases("Moves", "train").status is Status.PASS


def test_real_tensors_need_the_device_itself(cases: Get) -> None:
    result = cases("Moves", tier=Tier.REAL)
    assert result.status is Status.UNSUPPORTED
    assert result.detail == (
        "real tensors on neuron need the device, and this machine has none: --tier auto needs none"
    )


@pytest.mark.parametrize("name", REAL)
def test_real_tensors_on_a_device_have_the_verdict_of_the_declared_one(
    cases: Get, real: Get, name: str
) -> None:
    result, without = real(name, tier=Tier.REAL), cases(name)
    assert (result.status, result.phase) == (without.status, without.phase), result.detail
    assert (result.tier, result.probed) == (Tier.REAL, False)
    first = [[each.fingerprint for each in one.breaks[:1]] for one in (result, without)]
    assert first[0] == first[1]


ON_DOUBLE = """
import runpy, sys
import torch, torch_neuronx
from torch._subclasses.fake_tensor import FakeTensorMode

# What the double lacks: copies to the device while torch traces, convolutions, and counts of
# integers, which the CPU under it does not have.
FakeTensorMode.avoid_device_init = True
convolution = torch.ops.aten.convolution.default
library = torch.library.Library("aten", "IMPL")
library.impl(
    "convolution_overrideable", lambda *a: torch_neuronx._run(convolution, *a), "PrivateUse1"
)
histc = torch.ops.aten.histc.default
library.impl("histc", lambda x, *a: torch_neuronx._run(histc, x.float(), *a), "PrivateUse1")
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        "LightOnOcrForConditionalGeneration",
        "Mistral3ForConditionalGeneration",
        "MistralLarge4Model",
        "Emu3Model",
        "Sam3Model",
    ],
)
def test_plain_torch_with_real_tensors_on_the_device_confirms_what_differs_from_the_cpu(
    name: str, tmp_path: Path
) -> None:
    """Up to a minute each: the only judge of such classes that has no code of ours."""
    command = [sys.executable, "-m", "compilewatch", "reproduce", name, "--device", "neuron"]
    script = tmp_path / "script.py"
    script.write_text(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    done = subprocess.run(
        [sys.executable, "-c", ON_DOUBLE, str(script)],
        env={**os.environ, "PYTHONPATH": with_python_path(NATIVE), "NEURON_DOUBLE_CORES": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "graph break 1: " in done.stdout
