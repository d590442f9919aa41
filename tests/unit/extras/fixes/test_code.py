"""The code that `fix` prints runs as it is printed."""

import math
import sys
from types import ModuleType
from typing import Any

import msgspec
import pytest

from compilewatch.extras.fixes.code import NAME, context_manager, imports, pasteable
from compilewatch.extras.fixes.records import FixChange, FixKind

PATCHED = FixChange(
    name="sqrt replaced",
    kind=FixKind.FUNCTION,
    summary="The function math.sqrt is replaced by one that returns what it is given, " * 3,
    imports=("from unittest import mock", "import math"),
    definitions=("def same(x):\n    return x\n",),
    lines=("stack.enter_context(mock.patch.object(math, 'sqrt', same))",),
)
ARGUMENT = FixChange(
    name="scale given",
    kind=FixKind.ARGUMENT,
    summary="The scale is given.",
    imports=("import math",),
    lines=("if 'scale' not in kwargs:", "    kwargs['scale'] = 2"),
)
OPTION = FixChange(
    name="dynamic=False",
    kind=FixKind.SETTING,
    summary="Each shape is compiled by itself.",
    lines=("options['dynamic'] = False",),
)


@pytest.fixture
def compiled_with(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of each call of `torch.compile`, in whose place a function stands."""
    calls: list[dict[str, Any]] = []

    def compile_(model: Any, **options: Any) -> Any:
        calls.append(options)
        return model

    torch, dynamo = ModuleType("torch"), ModuleType("torch._dynamo")
    vars(torch).update(compile=compile_, _dynamo=dynamo)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._dynamo", dynamo)
    return calls


@pytest.mark.parametrize(
    ("changes", "options", "value"),
    [
        ((PATCHED,), {}, 9.0),
        ((ARGUMENT,), {}, 6.0),
        ((PATCHED, ARGUMENT), {}, 18.0),
        ((OPTION, PATCHED), {"dynamic": False}, 9.0),
    ],
    ids=["function", "argument", "both", "option"],
)
def test_the_printed_code_runs_as_it_is(
    changes: tuple[FixChange, ...],
    options: dict[str, Any],
    value: float,
    compiled_with: list[dict[str, Any]],
) -> None:
    results: list[float] = []

    def model(x: float, *, scale: int = 1) -> None:
        results.append(math.sqrt(x) * scale)

    names = {"model": model, "args": (9.0,), "kwargs": {}}
    exec(pasteable(changes, "What makes it one graph."), names)
    assert (results, compiled_with) == ([value], [options])
    assert math.sqrt(9.0) == 3.0  # nothing stays
    # Nor after an error.
    exec("\n".join([*imports(changes), context_manager(changes, "It fails.")]), names)
    manager: Any = names[NAME]
    assert manager.__doc__ == "It fails."
    with pytest.raises(ZeroDivisionError), manager(model, (), {}):
        1 / 0  # noqa: B018
    assert math.sqrt(9.0) == 3.0


def test_imports_and_definitions_appear_once() -> None:
    other = msgspec.structs.replace(PATCHED)
    assert context_manager((PATCHED, other), "Twice.").count("def same(x):") == 1
    always = ["import threading", "import torch", "import torch._dynamo"]
    assert imports((PATCHED, other, ARGUMENT)) == [
        *("import contextlib", "import math", *always, "from unittest import mock")
    ]
