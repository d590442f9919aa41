"""The XLA target, in its own environment with the real torch_xla; and what it does without."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from google.protobuf.empty_pb2 import Empty  # type: ignore[import-untyped]
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]
from torch import nn

from compilewatch.records import (
    FactoryBuild,
    HloParameters,
    Mode,
    ModelSpec,
    Request,
    Status,
    Target,
    Tier,
)
from compilewatch.worker.targets import FakeUnsupportedError
from compilewatch.worker.targets.xla.target import XlaTarget
from tests.integration.worker.targets.answers import Answered, ask
from tests.integration.worker.targets.conftest import CASES_FOLDER, MakeSubject

BATCHED = """
[inputs.x]
dtype = "float32"
shape = [3, 4]
fill = "normal"

[dynamic_shapes.x]
0 = "batch"
"""

SQUARE = ("Reads", "Falls", "Fetches", "Differs", "Chooses", "Normed", "Sorts", "Refused", "Dies")
CASES: dict[str, tuple[str | None, Mode]] = {
    "Plain": ("plain_inputs", Mode.EVAL),
    "Drops": ("square_inputs", Mode.TRAIN),
    "FallsTraining": ("square_inputs", Mode.TRAIN),
    "Batched": (None, Mode.EVAL),
    **dict.fromkeys(SQUARE, ("square_inputs", Mode.EVAL)),
}
"""Class of `cases/for_xla.py` -> its inputs (None: a file with a batch), mode."""


def map_of(answered: Answered) -> HloParameters:
    text = (answered.artifacts / "graph.parameters.json").read_bytes()
    return msgspec.json.decode(text, type=HloParameters)


def kept(answered: Answered) -> set[str]:
    return {name.removeprefix("graph.") for name in answered.kept()}


@pytest.fixture(scope="module")
def answers(xla_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answered]:
    """Every case, asked in one process of the environment."""
    root = tmp_path_factory.mktemp("xla")
    (root / "batched.toml").write_text(BATCHED)
    requests: dict[str, tuple[Request, dict[str, str]]] = {}
    for name, (inputs, mode) in CASES.items():
        build = FactoryBuild(
            factory=f"for_xla:{name}",
            path=str(CASES_FOLDER),
            inputs=f"for_xla:{inputs}" if inputs else None,
        )
        request = Request(
            model=ModelSpec(source="test", name=name, build=build),
            target=Target(name="xla", mode=mode),
            key=name,
            tier=Tier.REAL,
            inputs_file=str(root / "batched.toml") if inputs is None else None,
        )
        requests[name] = request, {}
    return ask(xla_python, "xla", requests, root, {"PJRT_DEVICE": "CPU"})


def test_without_torch_xla_it_says_how_to_get_it_and_fake_tensors_are_rejected(
    monkeypatch: pytest.MonkeyPatch, make_subject: MakeSubject
) -> None:
    monkeypatch.setitem(sys.modules, "torch_xla", None)
    assert XlaTarget().missing() == "no torch_xla: compilewatch env create xla"
    assert XlaTarget.tiers == (Tier.REAL,)
    with pytest.raises(FakeUnsupportedError, match="needs real tensors"):
        XlaTarget().run(make_subject(lambda: nn.Linear(4, 4), tier=Tier.FAKE, name="xla"))


@pytest.mark.xla
def test_a_model_that_lowers_as_a_single_graph_passes(answers: dict[str, Answered]) -> None:
    plain = answers["Plain"]
    result, xla = plain.result, plain.result.details
    assert (result.status, result.detail) == (Status.PASS, "one graph")
    assert (result.graphs, result.graph_breaks, result.numerics.matches) == (1, 0, True)
    assert plain.phases[-2:] == ["compile", "compare"]
    assert (xla.fallbacks, xla.hlo, xla.recompiles_same_inputs) == ({}, "lazy", 0)
    assert result.ops == sum(xla.operators.values())
    assert xla.operators["dot"] == 3
    assert xla.compile_seconds is not None
    assert xla.expected_to_fail_on_neuron == ()
    assert kept(plain) == {"hlo_module.pb", "parameters.json", "constants.safetensors"}


@pytest.mark.xla
def test_the_map_names_every_parameter_of_the_module(answers: dict[str, Answered]) -> None:
    listed = map_of(answers["Plain"])
    parameters = listed.parameters
    named = {each.name: (each.kind, each.shape, each.dtype) for each in parameters}
    (constant,) = [name for name, (kind, *_) in named.items() if kind == "constant"]
    assert named.pop(constant)[1:] == ((3,), "float32")
    assert named == {
        "embed.weight": ("parameter", (7, 5), "float32"),
        "inner.weight": ("parameter", (3, 5), "float32"),
        "inner.bias": ("parameter", (3,), "float32"),
        "outer.weight": ("parameter", (5, 3), "float32"),
        "scale": ("buffer", (3,), "float32"),
        "args[0]": ("input", (1, 4), "int64"),
    }
    tied = next(each for each in parameters if each.name == "embed.weight")
    assert tied.aliases == ("head.weight",)
    assert (listed.unused_inputs, listed.outputs) == (("args[1]",), ("logits", "hidden"))
    # The proto itself: HloModuleProto.host_program_shape = 4, ProgramShapeProto.parameters = 1,
    # ShapeProto.dimensions = 3 (xla/service/hlo.proto, xla/xla_data.proto).
    module = (answers["Plain"].artifacts / "graph.hlo_module.pb").read_bytes()
    (program,) = _fields(module, 4)
    shapes = [tuple(b"".join(_fields(shape, 3))) for shape in _fields(program, 1)]  # small numbers
    assert shapes == [parameter.shape for parameter in parameters]
    assert [parameter.id for parameter in parameters] == list(range(len(shapes)))


@pytest.mark.xla
@pytest.mark.parametrize(
    ("name", "code", "operator", "line"),
    [
        ("Reads", "xla_value_read", "aten::_local_scalar_dense", "if doubled.sum().item() > 0:"),
        ("Fetches", "xla_graph_cut", None, "return (x * 2).cpu().to(x.device) + 1"),
    ],
)
def test_a_break_has_its_code_and_line(
    answers: dict[str, Answered], name: str, code: str, operator: str | None, line: str
) -> None:
    result = answers[name].result
    assert result.status is Status.GRAPH_BREAK
    (graph_break,) = result.breaks
    assert (graph_break.code, graph_break.gb_type) == (code, operator)
    assert (graph_break.file, graph_break.function) == ("for_xla.py", "forward")
    assert graph_break.user_stack[-1].text == line
    assert (result.graph_breaks, result.unattributed, result.graphs) == (1, 0, 2)
    assert result.details.fallbacks == ({operator: 1} if operator else {})
    if operator is not None:
        assert result.details.hlo is None
        assert "its HLO module is only valid for these inputs and is not kept" in result.detail
        assert kept(answers[name]) == set()


@pytest.mark.xla
def test_where_the_call_breaks_the_module_is_that_of_export(answers: dict[str, Answered]) -> None:
    """Export takes the branch for every value, as Transformers' masks do where they are traced."""
    chooses, normed = answers["Chooses"], answers["Normed"]
    assert chooses.result.status is normed.result.status is Status.GRAPH_BREAK
    assert chooses.result.detail.endswith("its HLO module is that of torch.export")
    assert kept(chooses) == {"hlo_module.pb", "parameters.json"}
    listed = map_of(chooses)
    assert {each.name for each in listed.parameters} == {"linear.weight", "linear.bias", "args[0]"}
    assert listed.outputs == ("doubled", "sum")
    # An operator that export decomposes leaves a module, too.
    assert normed.result.details.fallbacks == {"aten::_weight_norm_interface": 1}
    assert chooses.result.details.hlo == normed.result.details.hlo == "export"


@pytest.mark.xla
def test_each_line_of_a_fallback_is_a_break_also_of_the_way_back(
    answers: dict[str, Answered],
) -> None:
    result = answers["Falls"].result
    first, second = result.breaks
    assert {first.code, second.code} == {"xla_fallback"}
    assert first.gb_type == second.gb_type == "aten::nonzero"
    assert first.line < second.line
    assert (first.occurrences, second.occurrences, result.graph_breaks) == (1, 2, 3)
    assert result.details.fallbacks == {"aten::nonzero": 3}
    back = answers["FallsTraining"].result
    assert (back.status, back.unattributed) == (Status.GRAPH_BREAK, 0)
    assert {each.user_stack[-1].text for each in back.breaks} == {
        "return torch.linalg.det(super().forward(x))"
    }
    assert len({each.gb_type for each in back.breaks}) > 1


@pytest.mark.xla
def test_training_captures_the_way_back_and_compares_gradients(
    answers: dict[str, Answered],
) -> None:
    drops = answers["Drops"]
    assert drops.result.status is Status.PASS, drops.result.detail
    assert "random numbers drawn on the CPU for the comparison" in drops.result.detail
    assert drops.result.numerics.deterministic
    assert drops.result.details.recompiles_same_inputs == 0
    layers = ("linear.weight", "linear.bias", "norm.weight", "norm.bias")
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    assert map_of(drops).outputs == (
        "output",
        *(f"gradient of {name}" for name in layers),
        *(f"buffer norm.{name}" for name in buffers),
    )
    assert "constant" in {each.kind for each in map_of(drops).parameters}  # the seed


@pytest.mark.xla
def test_each_other_end_has_its_status(answers: dict[str, Answered]) -> None:
    """Where XLA ends the process, the request's ends by the same signal."""
    differs = answers["Differs"].result
    assert differs.status is Status.MISMATCH
    assert differs.detail.startswith("differs from eager in output: off ")
    assert differs.numerics.max_abs_error == pytest.approx(1.0)
    sorts = answers["Sorts"].result
    (concern,) = sorts.details.expected_to_fail_on_neuron
    assert (sorts.status, concern.operator, concern.count) == (Status.PASS, "aten::sort", 1)
    assert f"expected to fail on Neuron: aten::sort (SDK {concern.sdk})" in sorts.detail
    assert sorts.details.operators["sort"] == 2  # topk is one as well
    refused = answers["Refused"].result
    assert (refused.status, refused.is_verdict) == (Status.ERROR, True)
    assert (refused.error.code, refused.error.file) == ("device_mismatch", "for_xla.py")
    assert (answers["Dies"].status, answers["Dies"].result) == (-6, None)
    batched = answers["Batched"].result
    assert batched.status is Status.PASS
    assert (batched.details.recompiles, batched.details.recompiles_same_inputs) == (1, 0)


def _fields(message: bytes, number: int) -> list[Any]:
    """The values of one field of a protobuf message."""
    fields = UnknownFieldSet(Empty.FromString(message))
    return [field.data for field in fields if field.field_number == number]
