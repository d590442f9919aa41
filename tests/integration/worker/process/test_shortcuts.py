"""Shortcuts change what torch does, not what comes of it: real captures, with and without them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo import config, exc, funcname_cache, symbolic_convert
from torch._logging._internal import log_state
from torch._subclasses.fake_tensor import FakeTensorMode

from compilewatch.contract.messages import PLAIN_TORCH
from compilewatch.worker.process import shortcuts

pytestmark = pytest.mark.torch

REPLACED = (
    (FakeTensorMode, "_cache_key"),
    (exc, "_extract_stack_with_positions"),
    (symbolic_convert, "get_funcname"),
)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def captured(backend: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    torch.compile(double, backend=backend)(torch.ones(3))


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
    of_torch, ours = stacks
    assert ours == of_torch
    assert ours[-1][-1] == "captured"


def test_no_file_is_searched_for_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbolic_convert, "get_funcname", symbolic_convert.get_funcname)
    for expected in (True, False):
        funcname_cache.clearcache()
        captured(lambda graph, _: graph.forward)
        assert (__file__ in funcname_cache.cache) is expected
        shortcuts.name_no_functions()


def test_a_log_with_names_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for log in ("trace_call", "trace_source"):
        monkeypatch.setattr(log_state, "is_artifact_enabled", lambda name, log=log: name == log)
        before = symbolic_convert.get_funcname
        shortcuts.name_no_functions()
        assert symbolic_convert.get_funcname is before


def test_at_most_four_attributes_of_torch_are_replaced_and_none_where_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(vars(config), "verbose", config.verbose)
    monkeypatch.delitem(vars(config), "verbose")
    for owner, name in REPLACED:
        monkeypatch.setattr(owner, name, getattr(owner, name, None))
    owners = (FakeTensorMode, config, exc, symbolic_convert)

    def state() -> dict[tuple[object, str], object]:
        return {(owner, name): value for owner in owners for name, value in vars(owner).items()}

    before = state()
    with monkeypatch.context() as plain:
        plain.setenv(PLAIN_TORCH, "1")
        shortcuts.take()
    assert state() == before
    shortcuts.take()
    changed = {key for key, value in state().items() if before.get(key) is not value}
    assert changed == {(config, "verbose"), *REPLACED}
