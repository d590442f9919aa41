"""Shortcuts change what torch does, not what comes of it: real captures, with and without them."""

from __future__ import annotations

import builtins
import inspect
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._decomp.decompositions_for_rng import PhiloxState
from torch._dynamo import exc, funcname_cache, output_graph, symbolic_convert, utils
from torch._dynamo.variables import builder
from torch._logging._internal import log_state, trace_log
from torch._subclasses import meta_utils
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.utils._triton import has_triton

from compilewatch.worker.process import shortcuts

pytestmark = pytest.mark.torch


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def captured(backend: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    torch.compile(double, backend=backend)(torch.ones(3))


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A function that returns the kinds of records of a capture's structured trace."""
    monkeypatch.setattr(meta_utils, "trace_structured", meta_utils.trace_structured)
    kinds: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kinds.append(next(iter(getattr(record, "metadata", {}))))

    def listen() -> list[str]:
        kinds.clear()
        listener = Listener(logging.DEBUG)
        trace_log.addHandler(listener)
        try:
            captured(lambda graph, _: graph.forward)
        finally:
            trace_log.removeHandler(listener)
        return list(kinds)

    return listen


def test_a_trace_has_all_records_but_those_of_tensors(records: Callable[[], list[str]]) -> None:
    records()  # the first capture of a process has more
    before = records()
    shortcuts.describe_no_tensors()
    after = records()
    assert {"describe_storage", "describe_tensor", "describe_source"} < set(before)
    assert after == [kind for kind in before if not kind.startswith("describe_")]


def test_a_trace_has_all_records_but_the_times_of_steps(
    records: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = utils.ChromiumEventLogger
    monkeypatch.setattr(logger, "_log_timed_event", logger._log_timed_event)
    records()  # the first capture of a process has more
    before = records()
    shortcuts.record_no_events()
    after = records()
    assert "chromium_event" in before
    assert after == [kind for kind in before if kind != "chromium_event"]


def test_states_of_generators_start_without_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PhiloxState, "reset", PhiloxState.reset)
    before = vars(PhiloxState()).keys()
    shortcuts.make_no_states_of_generators()
    state = PhiloxState()
    assert vars(state).keys() == before
    state.set_state(torch.tensor(1), torch.tensor(2))
    state.advance_offset(3)
    assert state.get_state_as_tuple() == (1, 5)
    with pytest.raises(AssertionError):
        PhiloxState().get_state_as_tuple()
    state.reset()
    assert (state.relative_offset, state.offset_advanced_at_least_once) == (0, False)
    with pytest.raises(AssertionError):
        state.get_state_as_tuple()


@pytest.mark.skipif(
    not hasattr(exc, "_extract_stack_with_positions"), reason="this torch reads no positions"
)
def test_the_stack_above_dynamo_is_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exc, "_extract_stack_with_positions", exc._extract_stack_with_positions)
    stacks: list[list[tuple[Any, ...]]] = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        stack = exc.get_stack_above_dynamo()
        stacks.append(
            [(f.filename, f.lineno, f.end_lineno, f.colno, f.end_colno, f.name) for f in stack]
        )
        return graph.forward

    for replaced in (False, True):
        if replaced:
            shortcuts.examine_only_frames_above_dynamo()
        captured(backend)
    expected, found = stacks
    assert found == expected
    assert [frame[-1] for frame in found[-2:]] == [
        "test_the_stack_above_dynamo_is_that_of_torch",
        "captured",
    ]
    called = inspect.getsourcelines(captured)[1] + 2
    assert found[-1][1:3] == (called, called)


def test_no_file_is_searched_for_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbolic_convert, "get_funcname", symbolic_convert.get_funcname)
    for expected in (True, False):
        funcname_cache.clearcache()
        captured(lambda graph, _: graph.forward)
        assert (__file__ in funcname_cache.cache) is expected
        shortcuts.name_no_functions()


@pytest.mark.parametrize("log", ["trace_call", "trace_source"])
def test_a_log_with_names_has_them(monkeypatch: pytest.MonkeyPatch, log: str) -> None:
    monkeypatch.setattr(log_state, "is_artifact_enabled", lambda name: name == log)
    before = symbolic_convert.get_funcname
    shortcuts.name_no_functions()
    assert symbolic_convert.get_funcname is before


def test_devices_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeTensorMode, "avoid_device_init", FakeTensorMode.avoid_device_init)
    asked: list[bool] = []
    expected = not torch.cuda.is_available()

    def is_available() -> bool:
        asked.append(True)
        return not expected

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    shortcuts.ask_once_for_devices()
    asked.clear()
    with FakeTensorMode() as mode:
        torch.ones(3)
    assert mode.avoid_device_init is expected
    assert asked == []


def test_code_is_generated_for_the_graph_of_the_backend_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(output_graph, "fx", output_graph.fx)
    generate = GraphModule.recompile
    generated: list[Any] = []

    def counted(graph: GraphModule) -> Any:
        generated.append(graph)
        return generate(graph)

    monkeypatch.setattr(GraphModule, "recompile", counted)
    graphs: list[str] = []

    def backend(graph: GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph.print_readable(print_output=False))
        return graph.forward

    counts = []
    for _ in range(2):
        generated.clear()
        captured(backend)
        counts.append(len(generated))
        shortcuts.generate_no_code_for_assertions()
    assert counts == [2, 1]
    assert graphs[0] == graphs[1]


def test_dynamo_knows_every_graph_module_after_the_shortcut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(output_graph, "fx", output_graph.fx)
    shortcuts.generate_no_code_for_assertions()
    names: Any = output_graph.fx
    graph = torch.fx.symbolic_trace(double)
    assert isinstance(graph, names.GraphModule)
    assert not isinstance(torch.nn.Linear(1, 1), names.GraphModule)
    lazy = names.GraphModule(torch.nn.Module(), graph.graph)
    assert isinstance(lazy, GraphModule)
    assert torch.equal(lazy(torch.ones(3)), torch.full((3,), 2.0))
    assert torch.fx.GraphModule is GraphModule


@pytest.mark.skipif(has_triton(), reason="Triton's own classes are used")
def test_classes_that_a_capture_needs_are_defined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = builder.VariableBuilder
    monkeypatch.setattr(owner, "_wrap", owner._wrap)

    def defined() -> int:
        here = [each for each in object.__subclasses__() if each.__module__ == builder.__name__]
        return sum("_wrap.<locals>" in each.__qualname__ for each in here)

    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph.code)
        return graph.forward

    captured(backend)
    shortcuts.define_classes_once()
    captured(backend)
    before = defined()
    captured(backend)
    assert defined() == before
    assert len(graphs) == 3
    assert len(set(graphs)) == 1
    assert "__build_class__" not in vars(builder)
    assert builder.__dict__["__builtins__"]["__build_class__"] is builtins.__build_class__


def test_a_class_with_a_dict_of_its_own_has_it_after_the_shortcut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    python: Any = inspect
    if not inspect.isfunction(python._shadowed_dict):
        pytest.skip("this Python remembers classes itself")
    monkeypatch.setattr(python, "_shadowed_dict", python._shadowed_dict)

    class NotHashable(type):
        __hash__ = None  # type: ignore[assignment]

        def __eq__(cls, other: object) -> bool:
            return True

    class Own(metaclass=NotHashable):
        __dict__ = {"a": 1}

    class Plain(metaclass=NotHashable):
        def __init__(self) -> None:
            self.a = 2

    examined: list[type] = []
    examine = python._shadowed_dict

    def recorded(class_: type) -> Any:
        examined.append(class_)
        return examine(class_)

    monkeypatch.setattr(python, "_shadowed_dict", recorded)
    shortcuts.examine_each_class_once()
    for _ in range(2):
        assert inspect.getattr_static(Plain(), "a") == 2
        with pytest.raises(AttributeError):
            inspect.getattr_static(Own(), "a")
    assert sum(each is Own for each in examined) == 1
    assert sum(each is Plain for each in examined) == 1
