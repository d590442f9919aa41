"""The Dynamo target on modules whose breaks are known."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
import torch
from breaks import CASES, Case, Known, explicit, line_of, module_of, whole
from evaluated import Evaluated
from torch import Tensor, nn
from torch._dynamo import guards
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._functorch import aot_autograd
from torch._subclasses.fake_tensor import FakeTensor

from compilewatch.environments import WORKER_VARIABLES
from compilewatch.records import Mode, Phase, Status, TargetOutcome, Tier
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import FakeUnsupportedError
from compilewatch.worker.targets.dynamo import target
from compilewatch.worker.targets.dynamo.capture import Capture, loss_of
from compilewatch.worker.targets.dynamo.graph_breaks import CODES, registry
from compilewatch.worker.targets.dynamo.target import DynamoTarget
from tests.integration.worker.targets.conftest import CASES_FOLDER, MakeSubject, RunScript

pytestmark = pytest.mark.torch

by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def printed_by(*command: str) -> bytes:
    command, variables = (sys.executable, *command), os.environ | WORKER_VARIABLES
    done = subprocess.run(command, cwd=CASES_FOLDER, env=variables, capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:].decode()
    return done.stdout


@pytest.fixture(scope="module")
def torch_says() -> dict[str, dict[str, Any]]:
    """The figures of plain torch, from a process that imports nothing of ours."""
    return json.loads(printed_by("plain_torch.py").splitlines()[-1])


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Evaluated]:
    """What compilewatch says of all cases, from a process with the variables of a worker."""
    printed = printed_by("evaluated.py", str(tmp_path_factory.mktemp("evaluated")))
    return msgspec.json.decode(printed, type=dict[str, Evaluated])


def total(breaks: tuple[Known, ...]) -> int:
    return sum(known.occurrences for known in breaks)


@by_case
def test_the_table_is_what_plain_torch_shows(
    case: Case, torch_says: dict[str, dict[str, Any]]
) -> None:
    figures, count = torch_says[case.name], total(case.breaks)
    assert figures["reports"] == count - case.untraced + case.restarted
    assert figures["given_up"] <= count
    assert figures["cuts"] <= count + case.restarted
    assert (figures["graphs"], figures["fullgraph"]) == (case.graphs, case.fullgraph)
    assert figures["second_call"] == total(case.later)


@by_case
def test_every_break_is_found_with_its_cause_and_line_and_all_that_torch_knows(
    case: Case, evaluations: dict[str, Evaluated], torch_says: dict[str, dict[str, Any]]
) -> None:
    outcome = evaluations[case.name].real
    later = outcome.second_call.breaks if outcome.second_call is not None else ()
    for breaks, expected in ((outcome.breaks, case.breaks), (later, case.later)):
        assert [(b.code, b.line, b.function, b.occurrences) for b in breaks] == [
            (known.code, line_of(known.mark), known.function, known.occurrences)
            for known in expected
        ]
    assert outcome.status is (Status.GRAPH_BREAK if case.breaks else Status.PASS)
    assert (outcome.graph_breaks, outcome.unattributed) == (total(case.breaks), 0)
    assert outcome.distinct_breaks == len(case.breaks)
    assert (outcome.fullgraph.accepted, outcome.fullgraph.code) == (case.fullgraph, case.refusal)
    assert outcome.fullgraph.derived == (not case.breaks and case.graphs == 1)
    figures = torch_says[case.name]
    assert outcome.graphs == figures["graphs"] == len(outcome.graph_ops) == len(outcome.graph_ends)
    assert outcome.ops == figures["ops"] == sum(outcome.graph_ops)
    assert outcome.guards == figures["guards"]
    lines = (CASES_FOLDER / "breaks.py").read_text(encoding="utf-8").splitlines()
    for graph_break in outcome.breaks:
        assert graph_break.file == "breaks.py"
        assert graph_break.user_stack
        assert not any(frame.file.startswith("/") for frame in graph_break.user_stack)
        assert str(CASES_FOLDER) not in graph_break.reason
        if graph_break.gb_id is None:
            assert graph_break.code in CODES
        else:
            assert registry()[graph_break.gb_type] == graph_break.gb_id == graph_break.code
            assert graph_break.gb_type in graph_break.reason
            assert graph_break.explanation
            assert graph_break.gb_id == "GB0099" or graph_break.user_stack[0].file == "breaks.py"
        line = graph_break.line
        assert (graph_break.source_start, [*graph_break.source]) == (
            line - 2,
            lines[line - 3 : line + 2],
        )
    fake = evaluations[case.name].fake
    assert fake is None if case.needs_real else fake == outcome


def test_each_graph_has_its_operations_and_its_end_and_each_break_its_whole_stack(
    evaluations: dict[str, Evaluated],
) -> None:
    assert evaluations["explicit"].real.graph_ops == (1, 1)
    assert evaluations["explicit"].real.graph_ends == (0, -1)
    assert evaluations["three_kinds"].real.graph_ends == (0, 1, 2, -1)
    (graph_break,) = evaluations["nested"].real.breaks
    assert [frame.function for frame in graph_break.user_stack] == ["nested", "middle", "inner"]
    assert graph_break.user_stack[-1].text == "torch._dynamo.graph_break()  # break: nested"


@by_case
@pytest.mark.filterwarnings("ignore:seen")
def test_the_script_of_plain_pytorch_agrees(
    case: Case, evaluations: dict[str, Evaluated], run_script: RunScript
) -> None:
    text = evaluations[case.name].script
    assert "import compilewatch" not in text
    assert "from compilewatch" not in text
    status, printed = run_script(text)
    assert status == 0, printed[-2:]
    breaks = total(case.breaks)
    counted = f"{case.graphs} graph{'s' * (case.graphs != 1)}, {breaks} break{'s' * (breaks != 1)}"
    assert printed[-1].startswith(f"got:      {counted}")
    assert printed[-1].endswith("accepted" if case.fullgraph else "rejected")


class Network(nn.Module):
    """In eval mode it breaks, in train mode it does not: the mode is the request's."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(4, 8)
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = torch.relu(self.into(nn.functional.dropout(x, training=self.training)))
        if not self.training:
            torch._dynamo.graph_break()
        return {"loss": self.out(y).square().mean()}


def run(subject: Subject) -> TargetOutcome:
    return DynamoTarget().run(subject)


def test_what_torch_counts_and_does_not_report_is_unattributed(
    make_subject: MakeSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InstructionTranslatorBase, "log_graph_break", lambda *_, **__: None)
    outcome = run(make_subject(module_of(explicit)))
    assert (outcome.status, outcome.graph_breaks) == (Status.GRAPH_BREAK, 1)
    assert outcome.unattributed == 1
    assert [b.code for b in outcome.breaks] == ["unattributed"]


def test_two_runs_in_one_process_do_not_see_each_other_and_leave_dynamo_as_it_was(
    make_subject: MakeSubject,
) -> None:
    logger, trace = logging.getLogger("torch._dynamo.convert_frame"), "torch.__trace"

    def state() -> tuple[Any, ...]:
        handlers = list(logging.getLogger(trace).handlers)
        return guards.profile_guard_manager, handlers, logger.level, list(logger.filters)

    before = state()
    first = run(make_subject(module_of(explicit)))
    assert run(make_subject(module_of(explicit))) == first
    run(make_subject(module_of(explicit), tier=Tier.FAKE, keep_artifacts=True))
    assert state() == before
    assert "__deepcopy__" not in vars(FakeTensor)
    assert run(make_subject(module_of(whole))).breaks == ()


@pytest.mark.parametrize("tier", [Tier.REAL, Tier.FAKE])
def test_dynamic_shapes_stay_symbols_in_the_graph(make_subject: MakeSubject, tier: Tier) -> None:
    def sized(self: nn.Module, x: Tensor) -> Tensor:
        return x.new_ones(x.shape[0] * 2)

    static = run(make_subject(module_of(sized), tier=tier))
    dynamic = run(make_subject(module_of(sized), tier=tier, dynamic=True))
    assert static.status is dynamic.status is Status.PASS
    assert dynamic.ops > static.ops


@pytest.mark.parametrize(("frames", "derived"), [(["0/0"], True), (["0/0", "1/0"], False)])
def test_fullgraph_is_not_derived_where_another_frame_was_traced_too(
    frames: list[str], derived: bool
) -> None:
    """No small module makes the installed torch trace a second frame."""
    captured = Capture(captured=["0/0"], frames=frames)
    assert captured.is_single_graph
    assert captured.proves_fullgraph is derived


@pytest.mark.parametrize("tier", [Tier.REAL, Tier.FAKE])
def test_train_mode_captures_loss_and_backward(
    make_subject: MakeSubject, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    joint: list[str] = []
    original = aot_autograd.create_aot_state

    def noting(*args: Any, **kwargs: Any) -> Any:
        joint.append("traced")
        return original(*args, **kwargs)

    monkeypatch.setattr(aot_autograd, "create_aot_state", noting)
    subject = make_subject(Network, tier=tier, mode=Mode.TRAIN)
    outcome, _ = target.captured_breaks(subject)
    assert (outcome.status, outcome.graphs) == (Status.PASS, 1)
    assert joint
    assert all(parameter.grad is not None for parameter in subject.module.parameters())
    assert run(make_subject(Network, tier=tier)).graph_breaks == 1


@torch.library.custom_op("compilewatch_tests::identity", mutates_args=())
def identity(x: Tensor) -> Tensor:
    return x.clone()


def _only_eager(_context: Any, gradient: Tensor) -> Tensor:
    if type(gradient) is not Tensor:
        raise ValueError("no joint graph with this")
    return gradient


identity.register_fake(torch.empty_like)
identity.register_autograd(_only_eager)


class NoJointGraph(Network):
    def forward(self, x: Tensor) -> Tensor:
        return identity(self.into(x))


@pytest.mark.filterwarnings("ignore:Error detected in Generated:UserWarning")  # anomaly mode
def test_a_joint_graph_that_fails_is_an_error_of_aot_autograd(make_subject: MakeSubject) -> None:
    outcome = run(make_subject(NoJointGraph, mode=Mode.TRAIN))
    assert (outcome.status, outcome.error.code) == (Status.ERROR, "aot_autograd")
    assert outcome.error.message.startswith("ValueError: no joint graph with this")


class BadBackward(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient.reshape(7, 7)


class NoBackward(Network):
    def forward(self, x: Tensor) -> Tensor:
        return BadBackward.apply(self.into(x))


def test_a_backward_that_fails_without_the_compiler_is_no_error_of_it(
    make_subject: MakeSubject,
) -> None:
    phases: list[Phase] = []
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        run(make_subject(NoBackward, mode=Mode.TRAIN, phases=phases))
    assert phases == [Phase.COMPILE, Phase.EAGER]


def test_the_loss_is_the_models_own_or_the_sum_of_its_means() -> None:
    x = torch.ones(2, 2, requires_grad=True)
    assert loss_of({"loss": (x * 3).sum(), "logits": x}).item() == 12
    assert loss_of((x * 2, [x], torch.ones(2), x.detach())).item() == 3
    assert loss_of(torch.ones(2)) is None


def refused(make_subject: MakeSubject, error: Exception, **options: Any) -> TargetOutcome:
    """The outcome with a backend that raises `error`."""

    def refuse(*_: object) -> NoReturn:
        raise error

    name = f"raises_{type(error).__name__}"
    torch._dynamo.register_backend(refuse, name=name)
    try:
        return run(make_subject(module_of(whole), backend=name, **options))
    finally:
        torch._dynamo.backends.registry._COMPILER_FNS.pop(name)


def test_an_error_of_100_kilobytes_keeps_its_cause(make_subject: MakeSubject) -> None:
    cause = ValueError("the true cause\n" + "filling " * 13_000 + "\nthe end")
    outcome = refused(make_subject, cause)
    record = outcome.error
    assert (outcome.status, record.code) == (Status.ERROR, "backend_error")
    assert record.type == "BackendCompilerFailed"
    assert record.message.startswith("ValueError: the true cause")
    assert "the end" in record.message
    assert len(record.message) < 20_000


def test_fake_tensors_may_be_the_reason_of_an_error(make_subject: MakeSubject) -> None:
    with pytest.raises(FakeUnsupportedError):
        refused(make_subject, ValueError("?"), tier=Tier.FAKE)
    settled = refused(make_subject, ValueError("?"), tier=Tier.FAKE, asked=Tier.FAKE)
    assert settled.status is Status.ERROR
    with pytest.raises(MemoryError):  # memory that runs out is never a verdict
        refused(make_subject, MemoryError())


def test_a_model_with_breaks_keeps_its_trace_rendered_and_another_none(
    make_subject: MakeSubject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = run(make_subject(module_of(whole), keep_artifacts=True))
    assert (outcome.artifacts, list(tmp_path.iterdir())) == ((), [])
    phases: list[Phase] = []
    index, log = run(
        make_subject(module_of(explicit), keep_artifacts=True, phases=phases)
    ).artifacts
    assert index == "tlparse/index.html"
    assert "graph_break" in (tmp_path / index).read_text().lower()
    assert "dynamo_graph_break_reason" in (tmp_path / log).read_text()
    # The rendering is over when `fullgraph=True` is compiled.
    assert phases == [Phase.COMPILE, Phase.PROFILE, Phase.COMPILE]
    monkeypatch.setattr("compilewatch.contract.processes.program", lambda _: None)
    outcome = run(make_subject(module_of(explicit), keep_artifacts=True))
    assert index not in outcome.artifacts
    assert log in outcome.artifacts
    assert "tlparse is not installed" in outcome.detail
