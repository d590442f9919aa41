"""What a failure in each phase becomes; processes and compilers are tested elsewhere."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor

from compilewatch.contract.messages import ChildResult
from compilewatch.contract.targets import declared
from compilewatch.errors import InputsError
from compilewatch.records import (
    ConfigBuild,
    Depth,
    ErrorRecord,
    FactoryBuild,
    Mode,
    ModelSpec,
    Phase,
    Request,
    Status,
    Target,
    TargetOutcome,
    Tier,
)
from compilewatch.worker import example_inputs, forked, phases
from compilewatch.worker.device import on_device
from compilewatch.worker.model import resolve as models
from compilewatch.worker.model.resolve import MissingPackageError, UnknownArchitectureError
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import CompileTarget, FakeUnsupportedError
from tests import chaos, factories

pytestmark = pytest.mark.torch


class StubTarget(CompileTarget):
    """Answers with what a test puts in; `subjects` is what it was given."""

    name = "stub"
    tiers = (Tier.FAKE, Tier.REAL)

    def __init__(self) -> None:
        self.outcome: TargetOutcome | Exception = PASSED
        self.lacks: str | None = None
        self.subjects: list[Subject] = []

    def missing(self) -> str | None:
        return self.lacks

    def run(self, subject: Subject) -> TargetOutcome:
        subject.enter(Phase.COMPILE)
        self.subjects.append(subject)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


Ask = Callable[..., ChildResult]
PASSED = TargetOutcome(status=Status.PASS, detail="one graph", graphs=1)


def wrapped(cause: Exception) -> Exception:
    outer = RuntimeError("while compiling")
    outer.__cause__ = cause
    return outer


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> StubTarget:
    stub = StubTarget()
    monkeypatch.setattr(phases, "load_target", lambda name: stub)
    return stub


@pytest.fixture
def ask(target: StubTarget, tmp_path: Path) -> Ask:
    def ask_one(
        behaviour: str = "ok", tier: Tier = Tier.FAKE, asked: Tier = Tier.AUTO, **fields: Any
    ) -> ChildResult:
        given: dict[str, Any] = {"model": factories.chaos(behaviour), "target": Target()}
        given |= {"key": "k", "tier": asked, **fields}
        return phases.evaluate(Request(**given), tier, tmp_path, lambda phase: None)

    return ask_one


@pytest.fixture
def strikes(monkeypatch: pytest.MonkeyPatch) -> Callable[[Phase, BaseException], None]:
    """Make the chaos model `probe` raise in a phase."""

    def set_up(phase: Phase, error: BaseException) -> None:
        def act() -> None:
            raise error

        monkeypatch.setitem(chaos.BEHAVIOURS, "probe", (phase, act))
        if phase is Phase.INPUTS:  # as a rule fails; what a team's function raises is its own error
            monkeypatch.setattr(example_inputs, "make_inputs", lambda *_, **__: act())

    return set_up


def test_the_outcome_of_the_target_is_the_result(
    ask: Ask, target: StubTarget, tmp_path: Path
) -> None:
    answer = ask()
    result = answer.result
    assert (result.status, result.phase, result.tier) == (Status.PASS, Phase.DONE, Tier.FAKE)
    assert (result.detail, result.graphs, result.parameters) == ("one graph", 1, 20)
    assert (result.inputs_strategy, result.depth) == ("factory", Depth.FULL)
    assert answer.fake_failure is None
    (subject,) = target.subjects
    assert isinstance(subject.inputs.kwargs["x"], FakeTensor)
    assert all(isinstance(p, FakeTensor) for p in subject.module.parameters())
    assert not subject.module.training
    marked: list[Phase] = []
    phases.evaluate(result.request, Tier.FAKE, tmp_path, marked.append)
    assert list(dict.fromkeys(marked)) == list(Phase)[: list(Phase).index(Phase.COMPILE) + 1]
    # An outcome that is no verdict keeps its phase.
    record = ErrorRecord(type="BackendCompilerFailed", message="no", code="backend")
    for status in (Status.OOM, Status.ERROR):
        target.outcome = TargetOutcome(status=status, error=record, detail="no")
        result = ask().result
        assert (result.status, result.phase, result.error) == (status, Phase.COMPILE, record)
        assert result.is_verdict is (status is Status.ERROR)


def test_the_real_tier_has_real_tensors_and_the_same_seed(ask: Ask, target: StubTarget) -> None:
    assert ask(tier=Tier.REAL).result.tier is Tier.REAL
    ask(tier=Tier.REAL, target=Target(mode=Mode.TRAIN))
    first, second = target.subjects
    assert first.fake_mode is None
    assert not isinstance(first.inputs.kwargs["x"], FakeTensor)
    assert (first.module.training, second.module.training) == (False, True)
    weights = (subject.module.state_dict()["linear.weight"] for subject in target.subjects)
    assert torch.equal(*weights)


INPUTS, EAGER, CREATE = Phase.INPUTS, Phase.EAGER, Phase.CREATE
NEEDS = "needs the package timm, which is not in this environment"


@pytest.mark.parametrize(
    ("phase", "error", "status", "code", "detail", "blamed"),
    [
        (CREATE, ValueError("no"), Status.ERROR, "value_error", "ValueError: no", True),
        (INPUTS, ValueError("no"), Status.ERROR, "value_error", "ValueError: no", True),
        (EAGER, ValueError("no"), Status.ERROR, "value_error", "ValueError: no", True),
        (CREATE, KeyboardInterrupt("no"), Status.ERROR, "keyboard_interrupt", "KeyboardI", True),
        (CREATE, GeneratorExit("no"), Status.ERROR, "generator_exit", "GeneratorExit: no", True),
        (CREATE, SystemExit("no"), Status.ERROR, "system_exit", "SystemExit: no", True),
        # Real tensors would not change these.
        (CREATE, MissingPackageError("timm"), Status.UNSUPPORTED, "missing_package", NEEDS, False),
        (CREATE, UnknownArchitectureError("no X"), Status.UNSUPPORTED, "unknown_architecture",
         "", False),
        (CREATE, MemoryError(), Status.OOM, "out_of_memory", "", False),
        (CREATE, RuntimeError("[enforce] can't allocate memory"), Status.OOM, "out_of_memory",
         "", False),
        (CREATE, InputsError("no rule makes it"), Status.ERROR, "inputs_error", "", False),
    ],
)  # fmt: skip
def test_before_the_compiler_an_error_has_its_phase_and_may_be_the_fake_tensors(
    ask: Ask,
    strikes: Callable[..., None],
    phase: Phase,
    error: BaseException,
    status: Status,
    code: str,
    detail: str,
    blamed: bool,
) -> None:
    strikes(phase, error)
    answer = ask("probe")
    assert (answer.result.status, answer.result.phase) == (status, phase)
    assert not answer.result.is_verdict
    assert answer.result.error.code == code
    assert answer.result.detail.startswith(detail)
    assert (answer.fake_failure is not None) is blamed
    for tier, asked in ((Tier.REAL, Tier.AUTO), (Tier.FAKE, Tier.FAKE)):  # no other tier follows
        assert ask("probe", tier=tier, asked=asked).fake_failure is None


def test_a_target_that_lacks_something_or_the_tier_is_not_run(ask: Ask, target: StubTarget) -> None:
    target.lacks = "torch_xla is not installed"
    result = ask().result
    assert (result.status, result.phase) == (Status.UNSUPPORTED, Phase.SETUP)
    assert "torch_xla is not installed" in result.detail
    target.lacks, target.tiers = None, (Tier.REAL,)  # type: ignore[assignment]
    asked = ask("ok", tier=Tier.FAKE)
    assert asked.fake_failure is not None
    assert asked.result.phase is Phase.SETUP
    assert target.subjects == []


@pytest.mark.parametrize(
    ("error", "blamed"),
    [
        (FakeUnsupportedError("a value was read"), True),
        (DataDependentOutputException(torch.ops.aten._local_scalar_dense.default), True),
        (RuntimeError("the compiler's own"), False),
        (wrapped(DataDependentOutputException(torch.ops.aten.item.default)), True),
    ],
)
def test_in_the_compiler_only_what_says_so_is_the_fake_tensors(
    ask: Ask, target: StubTarget, error: Exception, blamed: bool
) -> None:
    target.outcome = error
    answer = ask()
    assert (answer.result.status, answer.result.phase) == (Status.ERROR, Phase.COMPILE)
    assert (answer.fake_failure is not None) is blamed


def test_real_weights_lift_the_offline_switch_of_the_child_only(
    monkeypatch: pytest.MonkeyPatch, target: StubTarget, tmp_path: Path
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    seen: list[bool] = []

    def build(request: Request, *_: Any) -> Any:
        seen.append(huggingface_hub.constants.HF_HUB_OFFLINE)
        raise ValueError

    monkeypatch.setattr(models, "build_model", build)
    for weights in (False, True):
        config = ConfigBuild(config_file="/c", config_sha256="", repo="o/m", weights=weights)
        model = ModelSpec(source="hub", name="o/m", build=config)
        request = Request(model=model, target=Target(), key="k")
        phases.evaluate(request, Tier.FAKE, tmp_path, lambda phase: None)
    assert seen == [True, False]


FACTORIES = """
import torch
from torch import nn

CALLS = []


class Counts(nn.Module):
    def __init__(self, limit=9):
        super().__init__()
        self.linear, self.limit = nn.Linear(3, 2), limit

    def forward(self, x):
        CALLS.append(len(CALLS))
        if self.training and x.shape[0] == 2:
            raise RuntimeError("another batch")
        return self.linear(x)


class Broken(nn.Module):
    def forward(self, x):
        raise RuntimeError("always")


class OnlyFake(nn.Module):
    def forward(self, x):
        if type(x) is torch.Tensor:
            raise RuntimeError("no real tensor")
        return x + 1


def imports():
    import a_package_that_is_not_here


def inputs():
    return torch.ones(2, 3)
"""


@pytest.fixture
def own(ask: Ask, tmp_path: Path) -> Ask:
    """Evaluate a model of a module that the test writes."""
    (tmp_path / "guessed_models.py").write_text(FACTORIES)

    def evaluate(factory: str, inputs: str | None = None, **fields: Any) -> ChildResult:
        made = f"guessed_models:{inputs}" if inputs else None
        build = FactoryBuild(factory=f"guessed_models:{factory}", path=str(tmp_path), inputs=made)
        model = ModelSpec(source="manifest", name="m", build=build)
        return ask(model=model, **fields)

    return evaluate


def test_guessed_inputs_are_tried_and_the_model_stays_one_that_nothing_has_called(
    own: Ask, target: StubTarget
) -> None:
    result = own("Counts").result
    assert (result.status, result.inputs_strategy) == (Status.PASS, "guess")
    (subject,) = target.subjects
    assert subject.inputs.guessed == ("x [2, 3] float (the layer Linear)",)
    if forked.possible():
        assert sys.modules["guessed_models"].CALLS == []


@pytest.mark.parametrize(
    ("factory", "tier", "words"),
    [
        ("Broken", Tier.FAKE, "inputs (x [2, 32] float (a plain tensor)): RuntimeError: always"),
        ("Broken", Tier.REAL, "`compilewatch inputs m --environment mine --save FILE`"),
        ("OnlyFake", Tier.FAKE, "RuntimeError: no real tensor"),  # a guess needs real tensors
    ],
)
def test_a_failure_on_guessed_inputs_is_one_of_the_inputs(
    own: Ask, target: StubTarget, factory: str, tier: Tier, words: str
) -> None:
    answer = own(factory, tier=tier, target=Target(environment="mine"))
    assert (answer.result.status, answer.result.phase) == (Status.ERROR, Phase.INPUTS)
    assert not answer.result.is_verdict
    assert words in answer.result.detail
    assert (answer.fake_failure is not None) is (tier is Tier.FAKE)
    assert not target.subjects


def test_a_guess_that_the_eager_call_rejects_is_one_of_the_inputs(
    own: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(subject: Subject) -> None:
        raise ValueError("not today")

    monkeypatch.setattr(phases, "_eager", refuse)
    result = own("Counts", tier=Tier.REAL).result
    assert (result.status, result.phase) == (Status.ERROR, Phase.INPUTS)
    assert "ValueError: not today" in result.detail


def test_what_a_factory_and_its_inputs_do_is_the_models_own(own: Ask) -> None:
    result = own("Broken", inputs="inputs", tier=Tier.REAL).result
    assert (result.status, result.phase) == (Status.ERROR, Phase.EAGER)
    assert result.detail == "RuntimeError: always"
    result = own("imports").result
    assert (result.status, result.phase) == (Status.UNSUPPORTED, Phase.CREATE)
    name = "a_package_that_is_not_here"
    assert result.detail == (
        f"needs the package {name}, which is not in this environment: "
        f"`compilewatch env create {name} --with {name}`, then --environment {name}"
    )


def test_a_model_moves_to_a_real_device_after_its_inputs_are_made(
    ask: Ask, target: StubTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule for labels calls the model, with inputs that no device has yet."""
    fields = {
        "model": factories.spec("GPT2LMHeadModel"),
        "target": Target(mode=Mode.TRAIN, device="cuda"),
        "device": declared("cuda"),
        "depth": Depth.REDUCED,
    }
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    missing = ask(tier=Tier.REAL, asked=Tier.REAL, **fields).result
    assert missing.status is Status.UNSUPPORTED
    assert "need the device" in missing.detail
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    meta = torch.device("meta")
    monkeypatch.setattr(phases, "on_device", lambda subject, _: on_device(subject, meta))
    monkeypatch.setattr(phases, "_call_once", lambda _: None)  # a meta tensor has no values
    result = ask(tier=Tier.REAL, asked=Tier.REAL, **fields).result
    assert result.status is Status.PASS, result.detail
    (subject,) = target.subjects
    assert "labels" in subject.inputs.kwargs
    assert subject.rebuilt is not None
    tensors = [*subject.inputs.kwargs.values(), *subject.rebuilt().parameters()]
    assert {str(tensor.device) for tensor in [*tensors, *subject.module.parameters()]} == {"meta"}
