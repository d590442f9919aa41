"""The code that `fix` prints runs as it is printed."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

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
    seen: list[dict[str, Any]] = []

    def compile_(model: Any, **options: Any) -> Any:
        seen.append(options)
        return model

    torch, dynamo = ModuleType("torch"), ModuleType("torch._dynamo")
    vars(torch).update(compile=compile_, _dynamo=dynamo)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._dynamo", dynamo)
    return seen


def model(x: float, *, scale: int = 1) -> None:
    import math

    CALLED.append(math.sqrt(x) * scale)


CALLED: list[float] = []


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
    import math

    CALLED.clear()
    exec(
        pasteable(changes, "What makes it one graph."),
        {"model": model, "args": (9.0,), "kwargs": {}},
    )
    assert (CALLED, compiled_with) == ([value], [options])
    assert math.sqrt(9.0) == 3.0  # nothing stays


def test_imports_and_definitions_appear_once() -> None:
    other = FixChange(**{name: getattr(PATCHED, name) for name in PATCHED.__struct_fields__})
    assert context_manager((PATCHED, other), "Twice.").count("def same(x):") == 1
    assert imports((PATCHED, other, ARGUMENT)) == [
        "import contextlib",
        "import math",
        "import threading",
        "import torch",
        "import torch._dynamo",
        "from unittest import mock",
    ]


def test_what_the_code_does_is_undone_after_an_error(compiled_with: list[dict[str, Any]]) -> None:
    import math

    names: dict[str, Any] = {}
    exec("\n".join([*imports([PATCHED]), context_manager([PATCHED], "It fails.")]), names)
    assert names[NAME].__doc__ == "It fails."

    def fail() -> None:
        with names[NAME](model, (), {}):
            assert math.sqrt(4.0) == 4.0
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert math.sqrt(4.0) == 2.0
