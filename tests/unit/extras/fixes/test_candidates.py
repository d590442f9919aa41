"""What is proposed for the reason of a break, and what the proposed source does when it is run."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from compilewatch.extras.fixes import replacements
from compilewatch.extras.fixes.candidates import Place, after_rejection, proposals
from compilewatch.extras.fixes.records import FixChange
from compilewatch.records import ClassBuild, GraphBreak, ModelSpec, StackFrame, TensorSummary
from tests.factories import graph_break, request

ITEM = "Tensor.item() call with capture_scalar_outputs=False"
ALWAYS = {"call once before compiling"}


def place(*inputs: TensorSummary) -> Place:
    build = ClassBuild(class_name="Net")
    spec = ModelSpec(source="library", name="Net", build=build)
    return Place(request=request(model=spec), source_of=lambda _: None, inputs=inputs)


def proposed(found: GraphBreak, *inputs: TensorSummary) -> dict[str, FixChange]:
    changes = proposals([found], place(*inputs))
    assert all(each.holds_if for each in changes)  # what no script can try is said of each
    return {each.name: each for each in changes}


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        (ITEM, "capture_scalar_outputs=True"),
        ("aten.nonzero's output shape depends on input Tensor data", "capture_dynamic_output"),
        ("Set torch._dynamo.config.allow_rnn=True", "allow_rnn=True"),
        ("Set graph_break_on_nn_param_ctor", "graph_break_on_nn_param_ctor=False"),
        ("LOAD_BUILD_CLASS is not supported", "enable_trace_load_build_class=True"),
        ("torch.autograd.grad is not supported", "trace_autograd_ops=True"),
        ("Dynamo recompile limit exceeded", "recompile_limit=64"),
        ("ignore_logging_functions.add(logger.warning_once)", "ignore_logging_functions: warning"),
        (
            "how to trace the Python builtin `_warnings.warn`",
            "ignore_logging_functions: warnings.w",
        ),
        ("Developer debug context: builtin print [] False", "reorderable_logging_functions: print"),
    ],
)
def test_a_setting_is_proposed_for_the_reason_that_names_it(reason: str, name: str) -> None:
    names = set(proposed(graph_break(reason=reason))) - ALWAYS
    assert any(each.startswith(name) for each in names), names
    assert set(proposed(graph_break(reason="a branch that depends on data"))) == ALWAYS


def test_small_integers_are_given_as_numbers_and_data_are_not() -> None:
    found = proposed(
        graph_break(reason=ITEM),
        TensorSummary(name="image_grid_thw", shape=(2, 3), dtype="int64"),
        TensorSummary(name="input_ids", shape=(2, 4), dtype="int64"),
        TensorSummary(name="attention_mask", shape=(2, 4), dtype="int64"),
        TensorSummary(name="pixel_values", shape=(2, 3), dtype="float32"),
        TensorSummary(name="indices", shape=(9, 9), dtype="int64"),
        TensorSummary(name="args[0]", shape=(2,), dtype="int64"),
    )
    assert [name for name in found if name.endswith("as numbers")] == [
        "image_grid_thw given as numbers"
    ]


def test_a_check_of_tensors_is_replaced_where_a_break_is_at_its_call() -> None:
    source = ("    torch._check_tensor_all(cond)",)
    found = proposed(graph_break(reason=ITEM, source=source, source_start=1))
    assert "torch._check_tensor_all replaced" in found
    assert "torch._check_tensor_all replaced" not in proposed(graph_break(reason=ITEM))


def test_a_second_shape_that_fails_is_compiled_by_itself() -> None:
    more = after_rejection("results of Inductor: PendingUnbackedSymbolNotFound: u0")
    assert more is not None
    assert more.name == "dynamic=False"
    assert after_rejection("eager results, seed 0: output differs by 1") is None


class Net:
    """What the source of the changes reads of a model."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(_attn_implementation="sdpa")

    def set_attn_implementation(self, name: str) -> None:
        self.config._attn_implementation = name

    def forward(self, x: float, *, use_cache: bool = True) -> float:
        return x * use_cache


class WithoutCache(Net):
    def forward(self, x: float) -> float:  # type: ignore[override]
        return x


def in_force(file: str, name: str, stack: ExitStack, model: Net) -> dict[str, Any]:
    """Put the change in force that is proposed for a frame of this file; return the arguments."""
    frame = StackFrame(file=file, line=1, function="forward")
    change = proposed(graph_break(reason="x", user_stack=(frame,)))[name]
    names: dict[str, Any] = {"stack": stack, "model": model, "kwargs": {}}
    for text in (*change.imports, *change.definitions, "\n".join(change.lines)):
        exec(text, names)
    return names["kwargs"]


def test_the_implementation_of_attention_is_as_before_after_the_call() -> None:
    model = Net()
    with ExitStack() as stack:
        in_force("net/attention.py", "attention implementation eager", stack, model)
        assert model.config._attn_implementation == "eager"
    assert model.config._attn_implementation == "sdpa"


def test_no_cache_is_wanted_only_of_a_model_that_takes_the_argument() -> None:
    for model, expected in ((Net(), {"use_cache": False}), (WithoutCache(), {})):
        with ExitStack() as stack:
            assert in_force("net/cache_utils.py", "use_cache=False", stack, model) == expected


TEAM = """
def locked(x):
    with LOCK:
        return x

class Net:
    def forward(self, x):
        return self.part(x)
"""


def traced(reason: str, *frames: tuple[str, str]) -> list[str]:
    """The functions that are to be traced without Dynamo, for a stack, the innermost frame last."""
    stack = tuple(StackFrame(file=file, line=1, function=function) for file, function in frames)
    found = graph_break(reason=reason, user_stack=stack)
    where = Place(request=place().request, source_of=lambda file: TEAM if "team" in file else None)
    return [each.name for each in proposals([found], where) if each.once]


def test_the_innermost_function_of_a_module_is_traced_without_dynamo() -> None:
    reason = "Unsupported context manager"
    stack = (("team/net.py", "forward"), ("team/net.py", "locked"), ("torch/nn.py", "locked"))
    assert traced(reason, *stack) == ["team.net.locked traced without Dynamo"]
    assert traced(reason, ("team/net.py", "forward")) == []  # a method
    assert traced(reason, ("other/net.py", "locked")) == []  # a file that cannot be read
    assert traced("Data-dependent branching", *stack) == []  # remains without Dynamo
    assert traced(ITEM, *stack) == []


def test_a_function_is_traced_wherever_it_was_imported_and_the_same_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here: Any = ModuleType("team_here")
    there: Any = ModuleType("team_there")
    exec("def locked(x): return x", vars(here))
    original = there.locked = here.locked
    other = there.another = lambda x: x
    for each in (here, there):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    seen = []
    monkeypatch.setattr(replacements, "nonstrict", cache(lambda _: object()))
    for _ in range(2):
        with ExitStack() as stack:
            replacements.trace_without_dynamo(stack, "team_here", "locked")
            assert here.locked is there.locked is not original
            seen.append(here.locked)
        assert (here.locked, there.locked) == (original, original)
    assert seen[0] is seen[1]
    assert there.another is other


DOWNSAMPLING = """
class Down:
    def __init__(self, steps):
        self.steps = steps
        self.count = 0

    def forward(self, x):
        self.count = self.count + 1
        r = 2 if self.steps else self.count
        return self.other if x.steps else r
"""


@pytest.mark.parametrize(
    ("reason", "line", "names"),
    [
        ("Data-dependent branching", 9, ["steps as a Python value"]),
        (ITEM, 9, ["steps as a Python value"]),
        ("Unsupported context manager", 9, []),
        ("Data-dependent branching", 8, []),  # counts
        ("Data-dependent branching", 10, []),  # of another object, and one that nothing assigns
    ],
)
def test_a_constant_attribute_is_proposed_as_a_python_value(
    reason: str, line: int, names: list[str]
) -> None:
    def proposed_in(source: str | None, file: str = "net/down.py") -> list[str]:
        found = graph_break(reason=reason, file=file, line=line)
        where = Place(request=place().request, source_of=lambda _: source)
        return [e.name for e in proposals([found], where) if e.name.endswith("Python value")]

    assert proposed_in(DOWNSAMPLING) == names
    assert proposed_in(DOWNSAMPLING, "torch/nn/down.py") == []
    assert proposed_in("not Python") == proposed_in(None) == []


@pytest.mark.torch
def test_only_numbers_that_take_no_gradient_are_held_as_python_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import numpy as np
    import torch

    monkeypatch.setattr(replacements, "torch", torch, raising=False)  # which the fix imports
    learnt = torch.tensor(2.0, requires_grad=True)
    for value, held in ((torch.tensor(3), 3), (np.float64(4.0), 4.0), (learnt, learnt), ("a", "a")):
        model = torch.nn.Module()
        model.step = value
        with ExitStack() as stack:
            replacements.hold_as_python_value(stack, model, "step")
            assert model.step is held or (type(model.step), model.step) == (type(held), held)
        assert model.step is value


CHECKS = """\
class Net:
    def checked(self, x):
        if x.max() > 3:
            raise ValueError("too large")
        return x

    def forward(self, x):
        {within}
            return self.checked(x)
        {then}
            return x * 0
"""


@pytest.mark.parametrize(
    ("within", "then", "rewritten"),
    [
        ("if x.dim():", "else:", True),
        ("try:", "finally:", True),
        ("try:", "except ValueError:", False),
        ("with contextlib.suppress(ValueError):", "if True:", False),
    ],
)
def test_a_check_whose_error_the_model_catches_is_not_rewritten(
    within: str, then: str, rewritten: bool
) -> None:
    """The error would be of another type, and come from the graph, where nothing catches it."""
    source = CHECKS.format(within=within, then=then)
    stack = tuple(
        StackFrame(file="lib/a.py", line=line, function=name)
        for line, name in ((9, "forward"), (3, "checked"))
    )
    found = graph_break(
        code="GB0170", reason="data-dependent", file="lib/a.py", line=3, user_stack=stack
    )
    where = replace(place(), source_of=lambda _: source)
    names = [each.name for each in proposals([found], where)]
    assert any(name.startswith("check in the graph") for name in names) == rewritten, names
