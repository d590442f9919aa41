"""Forecasts of Neuron by the real torch-mlir, in the environment that has it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from compilewatch.config import load_settings
from compilewatch.contract.targets import declared
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import FactoryBuild, Mode, NeuronDetail, Request, Result, Status, Target
from tests import factories
from tests.doubles import FOLDER

pytestmark = [pytest.mark.torch, pytest.mark.lowering]

CASES = Path(__file__).parents[4] / "cases"
LINES = (CASES / "for_lowering.py").read_text(encoding="utf-8").splitlines()
EVAL = ("Plain", "Breaks", "Lacks", "Handled", "Puts", "Normed", "ReadsWeights", "PadsByBuffer")
TRAIN = ("Plain", "Drops", "Normed", "ReadsWeights")

Get = Callable[..., tuple[Result, NeuronDetail]]


def _request(name: str, mode: Mode) -> Request:
    build = FactoryBuild(
        factory=f"for_lowering:{name}", path=str(CASES), inputs="for_lowering:inputs"
    )
    target = Target(name="neuron", environment="lowering", mode=mode)
    model = factories.spec(name, source="test", build=build, architecture=None)
    device = declared("neuron:trn2")
    return factories.request(name, model=model, target=target, key=f"{name}-{mode}", device=device)


def _evaluated(requests: list[Request], folder: Path) -> dict[str, Result]:
    cache = load_settings().cache_folder
    with LocalLauncher(2, ("lowering",), cache=cache) as launcher:
        return {done.result.request.key: done.result for done in launcher.run(requests, folder)}


@pytest.fixture(scope="module")
def of(tmp_path_factory: pytest.TempPathFactory) -> Get:
    requests = [_request(name, Mode.EVAL) for name in EVAL]
    requests += [_request(name, Mode.TRAIN) for name in TRAIN]
    results = _evaluated(requests, tmp_path_factory.mktemp("scratch"))

    def get(name: str, mode: Mode = Mode.EVAL) -> tuple[Result, NeuronDetail]:
        result = results[f"{name}-{mode}"]
        assert isinstance(result.details, NeuronDetail), (result.detail, result.error)
        return result, result.details

    return get


def directions(detail: NeuronDetail) -> list[str]:
    return [graph.direction for graph in detail.graphs]


def marked(name: str) -> int:
    return next(n for n, line in enumerate(LINES, start=1) if line.endswith(f"# {name}"))


def test_a_model_that_lowers_is_a_forecast_and_no_verdict(of: Get) -> None:
    result, detail = of("Plain")
    assert (result.status, result.is_verdict) == (Status.FORECAST_PASS, False)
    assert (detail.route, detail.target, detail.lowering_version) == (
        "lowering",
        "trn2",
        "20261001",
    )
    (graph,) = detail.graphs
    assert (graph.direction, graph.failed_stage) == ("inference", None)
    assert graph.seconds.keys() == {"passes", "lower"}
    assert graph.stablehlo_bytes is not None
    assert result.artifacts == ("stablehlo/graph_000_inference.mlir",)


def test_forward_and_backward_are_graphs_of_their_own(of: Get) -> None:
    """Without the end of its slices clamped, this backward takes all memory."""
    result, detail = of("Plain", Mode.TRAIN)
    assert (result.status, directions(detail)) == (Status.FORECAST_PASS, ["forward", "backward"])
    result, detail = of("Drops", Mode.TRAIN)
    assert (result.status, detail.operators) == (Status.FORECAST_PASS, ())


@pytest.mark.parametrize("mode", [Mode.EVAL, Mode.TRAIN])
def test_batch_norm_lowers_in_both_modes(of: Get, mode: Mode) -> None:
    result, detail = of("Normed", mode)
    assert (result.status, detail.operators) == (Status.FORECAST_PASS, ())


def test_graph_breaks_are_counted_as_on_dynamo(of: Get) -> None:
    result, detail = of("Breaks")
    assert (result.status, result.graph_breaks) == (Status.FORECAST_PASS, 1)
    assert directions(detail) == ["inference", "inference"]


def test_all_operators_without_a_lowering_are_named_with_their_lines(of: Get) -> None:
    result, detail = of("Lacks")
    assert (result.status, detail.failed_stage) == (Status.FORECAST_FAIL, "lower")
    found = {entry.name: (entry.occurrences, entry.stage, entry.line) for entry in detail.operators}
    assert found == {
        "aten.cummax.default": (2, "torch", marked("cummax")),
        "aten.searchsorted.Tensor": (1, "torch", marked("searchsorted")),
    }
    assert {entry.file for entry in detail.operators} == {"for_lowering.py"}
    assert all(entry.types and "torch.operator" in entry.message for entry in detail.operators)
    assert "and without them" not in result.detail


def test_what_torch_neuron_replaces_is_no_failure(of: Get) -> None:
    result, detail = of("Handled")
    (entry,) = detail.operators
    assert (result.status, entry.name) == (Status.FORECAST_PASS, "aten.nonzero_static.default")
    assert entry.handled_by.endswith("decompositions.py:963")
    assert "which TorchNeuron replaces itself" in result.detail


def test_what_torch_neuron_itself_rejects_is_a_failure(of: Get) -> None:
    result, detail = of("Puts")
    (entry,) = detail.operators
    assert (result.status, entry.name) == (Status.FORECAST_FAIL, "aten.index_put.default")
    assert (entry.line, entry.handled_by) == (marked("index_put"), "")


@pytest.mark.parametrize("mode", [Mode.EVAL, Mode.TRAIN])
def test_a_model_that_reads_values_is_captured_with_them(of: Get, mode: Mode) -> None:
    result, detail = of("ReadsWeights", mode)
    assert (result.status, result.graph_breaks) == (Status.FORECAST_PASS, 1)
    assert "on the CPU, then moved to the device" in result.detail
    training = ["backward", "backward", "forward", "forward"]
    assert sorted(directions(detail)) == (training if mode is Mode.TRAIN else ["inference"] * 2)


def test_values_that_dynamo_knows_are_known_to_the_lowering(of: Get) -> None:
    result, detail = of("PadsByBuffer")
    assert result.status is Status.FORECAST_PASS, result.detail
    assert set(directions(detail)) == {"inference"}


def test_graphs_are_compiled_where_neuronx_cc_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of its own, which finds the double of the compiler on its PATH."""
    monkeypatch.setenv("PATH", str(FOLDER / "bin"), prepend=":")
    (result,) = _evaluated([_request("Plain", Mode.EVAL)], tmp_path).values()
    assert isinstance(result.details, NeuronDetail)
    (graph,) = result.details.graphs
    assert (result.status, result.details.compiled) == (Status.FORECAST_PASS, True)
    assert graph.neff_bytes is not None
    assert graph.seconds.keys() == {"passes", "lower", "compile"}
    assert "-O1" in result.details.flags
