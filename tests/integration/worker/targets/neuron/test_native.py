"""The route of TorchNeuron, on a double of it: no Neuron device is needed, and none is tried."""

import os
import shutil
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from compilewatch.contract.targets import may_fork
from compilewatch.records import FactoryBuild, Mode, ModelSpec, Request, Status, Target, Tier
from tests.doubles import BIN, NATIVE, with_python_path
from tests.integration.worker.targets.answers import Answered, ask
from tests.integration.worker.targets.conftest import CASES_FOLDER

REJECTED = {"NEURON_DOUBLE": "error NCC_EVRF001 sort is not supported - Use topk"}
NAMES = "get_fallback_ops,clear_op_tracking"
NOTHING: Mapping[str, str] = {}
RELEASE = ".".join((*metadata.version("torch").split(".")[:2], "3.0.0"))
"""The double is for the torch that is installed, as each release of TorchNeuron is for one."""

CASES: dict[str, tuple[str, Mapping[str, Any], Mapping[str, str]]] = {
    "passes": ("Batched", {}, NOTHING),
    "trains": ("Batched", {"mode": Mode.TRAIN}, NOTHING),
    "random": ("Drops", {"mode": Mode.TRAIN}, NOTHING),
    "breaks": ("Reads", {}, NOTHING),
    "falls back": ("Draws", {}, NOTHING),
    "mixes": ("Keeps", {}, NOTHING),
    "not lowered": ("Histogram", {}, NOTHING),
    "not compiled": ("Batched", {}, REJECTED),
    "killed": ("Batched", {}, {"NEURON_DOUBLE": "kill"}),
    "in eager mode": ("Batched", {}, {**REJECTED, "NEURON_DOUBLE_SWITCHES": "ignored"}),
    "differs": ("Batched", {}, {"NEURON_DOUBLE_OFF_BY": "0.5"}),
    "lacks names": ("Batched", {}, {"NEURON_DOUBLE_LACKS": NAMES}),
    "lacks metrics": ("Batched", {}, {"NEURON_DOUBLE_LACKS": "get_dynamo_metrics"}),
    "broken": ("Batched", {}, {"NEURON_DOUBLE_LACKS": "libnrt"}),
    "compile only": ("Batched", {}, {"NEURON_DOUBLE_CORES": "0"}),
    "reads nothing": ("Reads", {}, {"NEURON_DOUBLE_CORES": "0"}),
    "no compiler": ("Batched", {}, {"NEURON_DOUBLE_CORES": "0", "PATH": "/usr/bin:/bin"}),
    "dynamic": ("Batched", {"dynamic": True}, NOTHING),
    "trn1": ("Batched", {"backend": "trn1"}, NOTHING),
}
"""Class of `cases/for_neuron.py`, its target, and what the double does."""

BATCHED = """
[inputs.x]
dtype = "float32"
shape = [3, 4]
fill = "normal"

[dynamic_shapes.x]
0 = "batch"
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answered]:
    """All cases. Only real graphs, tensors on a device and a compiler show what becomes of them."""
    root = tmp_path_factory.mktemp("native")
    (root / "batched.toml").write_text(BATCHED)
    requests = {}
    for name, (model, target, variables) in CASES.items():
        batched = model == "Batched"
        build = FactoryBuild(
            factory=f"for_neuron:{model}",
            path=str(CASES_FOLDER),
            inputs=None if batched else "for_neuron:square_inputs",
        )
        request = Request(
            model=ModelSpec(source="test", name=model, build=build),
            target=Target(name="neuron", **target),
            key=name,
            tier=Tier.REAL,
            inputs_file=str(root / "batched.toml") if batched else None,
        )
        requests[name] = request, variables
    (described,) = NATIVE.glob("*.dist-info")
    own = shutil.copytree(described, root / f"torch_neuronx-{RELEASE}.dist-info")
    (own / "METADATA").write_text(f"Name: torch-neuronx\nVersion: {RELEASE}\n")
    variables = {
        "PATH": os.pathsep.join((str(BIN), "/usr/bin:/bin")),
        "PYTHONPATH": os.pathsep.join((str(root), with_python_path(NATIVE))),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "NEURON_DOUBLE_CORES": "2",
    }
    return ask(Path(sys.executable), "neuron", requests, root, variables)


def test_a_model_runs_on_the_device_and_is_compared_and_measured(
    answers: dict[str, Answered],
) -> None:
    passed = answers["passes"]
    result, detail = passed.result, passed.result.details
    assert (result.status, result.graphs, result.graph_breaks) == (Status.PASS, 1, 0), result.detail
    assert result.detail.startswith("one graph; NEFFs: 2, ")  # the second is of the second shape
    assert passed.phases[-3:] == ["compile", "compare", "profile"]
    assert (result.numerics.matches, result.numerics.deterministic) == (True, True)
    assert (detail.route, detail.target, detail.sdk_version) == ("native", "trn2", RELEASE)
    assert (detail.compiled, detail.compile_only, detail.device_cores) == (True, False, 2)
    assert (detail.recompiles, detail.fallback_operators, detail.missing_names) == (1, {}, ())
    assert None not in (detail.latency_seconds, detail.eager_latency_seconds)
    (graph,) = detail.graphs
    assert (graph.direction, graph.cached, graph.failed_stage) == ("inference", False, None)
    assert (graph.seconds["passes"], graph.seconds["lower"]) == (1e-5, 2e-5)
    assert graph.seconds["compile"] == detail.compile_seconds > 0
    assert graph.neff_bytes == detail.neff_bytes > 1024
    assert graph.stablehlo_bytes > 0
    kept = [name for name in passed.kept() if name.endswith(".neff")]
    assert len(kept) == 2
    assert all(name.startswith("torch_neuronx/neff/proc_0/") for name in kept)


def test_training_compiles_a_backward_and_compares_gradients(answers: dict[str, Answered]) -> None:
    result = answers["trains"].result
    assert [graph.direction for graph in result.details.graphs] == ["forward", "backward"]
    assert (result.status, result.numerics.matches) == (Status.PASS, True)
    random = answers["random"].result
    assert (random.status, random.numerics.deterministic) == (Status.PASS, False)
    assert "numerics are not compared" in random.detail


def test_graph_breaks_and_operators_on_the_cpu_are_named(answers: dict[str, Answered]) -> None:
    # Without a device, values are zeros, and so the other branch is taken.
    for name, graphs in (("breaks", 2), ("reads nothing", 1)):
        result = answers[name].result
        (graph_break,) = result.breaks
        assert (result.status, result.graphs) == (Status.GRAPH_BREAK, graphs), result.detail
        assert graph_break.file == "for_xla.py"
        assert graph_break.user_stack[-1].text == "if doubled.sum().item() > 0:"
        assert len(result.details.graphs) == graphs
    fell = answers["falls back"].result
    assert fell.details.fallback_operators == {"aten::normal_": 1}
    assert fell.detail.endswith("; ran on the CPU: aten::normal_ (1)")


@pytest.mark.parametrize(
    ("name", "status", "stage", "code", "words"),
    [
        ("mixes", Status.ERROR, "passes", "neuron_passes", "Input tensor at index 0 is on cpu"),
        ("not lowered", Status.ERROR, "lower", "neuron_lower", "aten.histc (for_neuron.py:25)"),
        ("not compiled", Status.ERROR, "neff", "NCC_EVRF001", "operator: NCC_EVRF001: sort is not"),
        ("killed", Status.OOM, "neff", "neuronx_cc_host_memory", "host memory: SIGKILL"),
        ("in eager mode", Status.ERROR, "neff", "neuron_neff", "ran in eager mode, without a NEFF"),
        ("differs", Status.MISMATCH, "numerics", None, "differs from eager in output: "),
    ],
)
def test_a_failure_has_its_stage_and_what_is_said_of_it(
    answers: dict[str, Answered],
    name: str,
    status: Status,
    stage: str,
    code: str | None,
    words: str,
) -> None:
    result = answers[name].result
    assert (result.status, result.details.failed_stage) == (status, stage), result.detail
    assert (result.error and result.error.code) == code
    assert words in result.detail
    if name == "not lowered":
        (operator,) = result.details.operators
        assert (operator.name, operator.file, operator.line) == ("aten.histc", "for_neuron.py", 25)
        assert operator.types == "(!torch.vtensor<[3,4],f32>) -> !torch.vtensor<[10],f32>"
        assert (result.error.file, result.error.line) == ("for_neuron.py", 25)
    if name == "not compiled":
        failure = result.details.failure
        assert (failure.kind, failure.exit_status) == ("unsupported_operator", 70)
        assert failure.advice == "Use topk"
        assert [graph.failed_stage for graph in result.details.graphs] == ["neff"]


def test_names_that_a_release_lacks_are_done_without_and_said(
    answers: dict[str, Answered],
) -> None:
    tracking = answers["lacks names"].result
    assert tracking.status is Status.PASS
    assert {*tracking.details.missing_names} == {*NAMES.split(",")}
    assert tracking.detail.endswith("has no clear_op_tracking, get_fallback_ops")
    metrics = answers["lacks metrics"].result
    assert (metrics.status, metrics.details.graphs) == (Status.PASS, ())
    assert "; NEFFs: 2, " in metrics.detail


def test_without_a_device_it_is_compiled_and_nothing_is_compared(
    answers: dict[str, Answered],
) -> None:
    result = answers["compile only"].result
    assert (result.status, result.numerics) == (Status.PASS, None)
    assert result.detail.startswith("compiles for trn2, and did not run; one graph; NEFFs: 1, ")
    assert (result.details.compile_only, result.details.latency_seconds) == (True, None)
    assert "compare" not in answers["compile only"].phases


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("broken", "torch_neuronx cannot be imported: KeyError: 'libnrt'"),
        ("no compiler", "no Neuron device, and no neuronx-cc to compile for one"),
        ("dynamic", "Neuron compiles static shapes only (NCC_EMOD025)"),
        ("trn1", "TorchNeuron is for trn2 and trn3, trn1 needs torch-neuronx 2.9"),
    ],
)
def test_what_it_cannot_do_is_one_line(answers: dict[str, Answered], name: str, words: str) -> None:
    result = answers[name].result
    assert result.status is Status.UNSUPPORTED
    assert result.detail.startswith(words)


def test_a_process_that_has_imported_torch_is_not_forked_for_it() -> None:
    assert not may_fork("neuron", {"torch-neuronx": "2.14.3.0.0"})
    assert may_fork("dynamo", {"torch-neuronx": "2.14.3.0.0"})
    assert may_fork("neuron", {"torch-neuronx": "2.9.0.2.15"})
