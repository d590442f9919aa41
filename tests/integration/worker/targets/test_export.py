"""The export target on modules whose answers are known."""

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compilewatch.errors import UsageError
from compilewatch.records import Mode, Phase, Status, Tier
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets import FakeUnsupportedError
from compilewatch.worker.targets.export import DRAFT_ARTIFACT, OPS_ARTIFACT, ExportTarget, operators
from tests.integration.worker.targets.conftest import MakeSubject

pytestmark = [
    pytest.mark.torch,
    # torch.export.draft_export leaves its trace file open (torch 2.13).
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
]


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": self.second(torch.relu(self.first(x)))}


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1


class ExplicitBreak(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x + 1


class ReadBuffer(nn.Module):
    """Dynamo takes the value of a buffer of one element as a constant; non-strict does not."""

    length: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("length", torch.tensor(2))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, : int(self.length)]


class Normed(nn.BatchNorm1d):
    def __init__(self) -> None:
        super().__init__(4)


class Wrapped:
    def __init__(self, value: Tensor) -> None:
        self.value = value


class ReturnsObject(nn.Module):
    def forward(self, x: Tensor) -> Wrapped:
        return Wrapped(x + 1)


class Resized(nn.Module):
    """The first dimension of `x` may vary, that of `y` is tied to a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5, 2))

    def forward(self, x: Tensor, y: Tensor, names: list[Tensor]) -> Tensor:
        return x.sum() + (y * self.weight).sum() + names[0].sum()


class Converts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear.to(torch.float64)(x.double())


def run(subject: Subject) -> Any:
    return ExportTarget().run(subject)


@pytest.mark.parametrize("tier", [Tier.FAKE, Tier.REAL])
def test_a_plain_module_exports_both_ways(
    make_subject: MakeSubject, tmp_path: Path, tier: Tier
) -> None:
    assert run(make_subject(Plain, tier=tier, name="export")).artifacts == ()
    assert list(tmp_path.iterdir()) == []
    phases: list[Phase] = []
    outcome = run(make_subject(Plain, tier=tier, name="export", phases=phases, keep_artifacts=True))
    detail = outcome.details
    assert (outcome.status, outcome.ops) == (Status.PASS, 3)
    assert (detail.non_strict.exported, detail.strict.exported) == (True, True)
    assert (detail.disagrees, detail.draft) == (False, None)
    assert detail.dynamic_dimensions == detail.specialized_dimensions == ()
    assert outcome.artifacts == (OPS_ARTIFACT,)
    assert json.loads((tmp_path / OPS_ARTIFACT).read_text()) == {
        "dialect": "TRAINING",
        "ops": {"aten.linear.default": 2, "aten.relu.default": 1},
    }
    assert phases == [Phase.COMPILE, Phase.COMPARE]


def test_a_data_dependent_branch_is_classified_placed_and_drafted(
    make_subject: MakeSubject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    phases: list[Phase] = []
    outcome = run(make_subject(Branch, name="export", phases=phases, keep_artifacts=True))
    detail, line = outcome.details, inspect.getsourcelines(Branch.forward)[1] + 1
    assert (outcome.status, phases[-1]) == (Status.ERROR, Phase.COMPILE)
    assert outcome.error.code == "data_dependent_guard"
    assert (outcome.error.line, outcome.error.function) == (line, "forward")
    assert (detail.strict.code, detail.disagrees, detail.draft.exported) == ("GB0170", False, True)
    (failure,) = detail.draft.failures
    assert (failure.kind, failure.what) == ("data_dependent_error", "Eq(u0, 1)")
    assert (failure.line, failure.function) == (line, "forward")
    assert outcome.artifacts == (DRAFT_ARTIFACT,)
    report = (tmp_path / DRAFT_ARTIFACT).read_text()
    assert "1. Data dependent error." in report
    assert "\x1b" not in report
    assert list(scratch.iterdir()) == []  # a draft writes a trace


def test_a_value_that_fake_tensors_lack_leads_to_real_tensors(make_subject: MakeSubject) -> None:
    with pytest.raises(FakeUnsupportedError, match="data_dependent_guard"):
        run(make_subject(Branch, tier=Tier.FAKE, name="export"))
    outcome = run(make_subject(Branch, tier=Tier.FAKE, asked=Tier.FAKE, name="export"))
    assert (outcome.status, outcome.details.draft) == (Status.ERROR, None)


def test_what_only_one_way_rejects_and_the_backend_chooses_the_way(
    make_subject: MakeSubject,
) -> None:
    for tier in (Tier.FAKE, Tier.REAL):
        outcome = run(make_subject(ExplicitBreak, tier=tier, name="export"))
        assert (outcome.status, outcome.details.strict.code) == (Status.PASS, "GB0025")
        assert outcome.details.disagrees
        assert "strict fails: GB0025" in outcome.detail
    outcome = run(make_subject(ReadBuffer, name="export"))
    assert (outcome.status, outcome.details.disagrees) == (Status.ERROR, True)
    assert "strict exports" in outcome.detail
    only = run(make_subject(ReadBuffer, name="export", backend="non_strict"))
    assert (only.status, only.details.strict) == (Status.ERROR, None)
    strict = run(make_subject(ReadBuffer, name="export", backend="strict"))
    assert (strict.status, strict.details.non_strict) == (Status.PASS, None)
    with pytest.raises(UsageError, match="no backend 'lenient'; known: non_strict, strict"):
        run(make_subject(Plain, name="export", backend="lenient"))


@pytest.mark.parametrize(
    ("build", "code"), [(ReturnsObject, "unregistered_container"), (Converts, "module_converted")]
)
def test_what_export_alone_rejects_has_a_code(
    make_subject: MakeSubject, build: type[nn.Module], code: str
) -> None:
    assert run(make_subject(build, name="export", backend="non_strict")).error.code == code


EVERY_DIMENSION = ("x[0]", "x[1]", "names[0][0]", "names[0][1]")


@pytest.mark.parametrize(
    ("named", "dynamic", "specialized"),
    [
        ({k: {0: "batch"} for k in ("x", "y", "names")}, ("x[0]", "names[0][0]"), ("y[0]",)),
        ({}, EVERY_DIMENSION, ("y[0]", "y[1]")),
    ],
)
def test_dimensions_are_dynamic_or_said_to_be_constant(
    make_subject: MakeSubject,
    named: dict[str, dict[int, str]],
    dynamic: tuple[str, ...],
    specialized: tuple[str, ...],
) -> None:
    subject = make_subject(Resized, name="export", dynamic=True, backend="non_strict")
    inputs = ExampleInputs(
        strategy="test",
        args=(torch.ones(3, 4),),
        kwargs={"names": [torch.ones(6, 2)], "y": torch.ones(5, 2)},
        dynamic_shapes=named,
    )
    outcome = run(replace(subject, inputs=inputs))
    assert outcome.status is Status.PASS
    assert outcome.details.dynamic_dimensions == dynamic
    assert outcome.details.specialized_dimensions == specialized
    count = f"{len(dynamic)} of {len(dynamic) + len(specialized)}"
    assert f"{count} dimensions stay dynamic" in outcome.detail


def test_train_mode_is_exported_as_such(make_subject: MakeSubject, tmp_path: Path) -> None:
    for mode in (Mode.EVAL, Mode.TRAIN):
        subject = make_subject(Normed, name="export", mode=mode, keep_artifacts=True)
        assert run(subject).status is Status.PASS
        operators = json.loads((tmp_path / OPS_ARTIFACT).read_text())["ops"]
        counts_batches = "aten.add_.Tensor" in operators
        assert counts_batches is (mode is Mode.TRAIN)


def test_operators_of_nested_graphs_are_counted() -> None:
    class NoGrad(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                y = x.sin()
            return x.cos() * y

    program = torch.export.export(NoGrad(), (torch.ones(3, requires_grad=True),))
    names = {"aten.sin.default", "aten.cos.default", "wrap_with_set_grad_enabled"}
    assert names <= operators(program).keys()


def test_a_language_model_exports_with_its_cache(make_subject: MakeSubject) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 64}
    config = LlamaConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
    subject = make_subject(lambda: LlamaForCausalLM(config), name="export", backend="non_strict")
    tokens = torch.ones(2, 8, dtype=torch.int64)
    inputs = ExampleInputs(strategy="text", kwargs={"input_ids": tokens})
    outcome = run(replace(subject, inputs=inputs))
    assert outcome.status is Status.PASS, outcome.detail
