"""The code that `fix` prints runs as it is printed."""

import math
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


def test_the_printed_code_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[float] = []
    options: list[dict[str, Any]] = []

    def compiled(model: Any, **given: Any) -> Any:
        options.append(given)
        return model

    torch, dynamo = ModuleType("torch"), ModuleType("torch._dynamo")
    vars(torch).update(compile=compiled, _dynamo=dynamo)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._dynamo", dynamo)

    def model(x: float, *, scale: int = 1) -> None:
        results.append(math.sqrt(x) * scale)

    for changes in ((PATCHED,), (PATCHED, ARGUMENT, OPTION)):
        exec(pasteable(changes, "One graph."), {"model": model, "args": (9.0,), "kwargs": {}})
        assert math.sqrt(9.0) == 3.0  # nothing stays
    assert (results, options) == ([9.0, 18.0], [{}, {"dynamic": False}])
    # Nor after an error. Imports and definitions appear once.
    names: dict[str, Any] = {}
    source = context_manager((PATCHED, PATCHED), "It fails.")
    exec("\n".join([*imports([PATCHED, ARGUMENT]), source]), names)
    assert source.count("def same(x):") == 1
    assert names[NAME].__doc__ == "It fails."
    with pytest.raises(ZeroDivisionError), names[NAME](model, (), {}):
        1 / 0  # noqa: B018
    assert math.sqrt(9.0) == 3.0
    always = ["import threading", "import torch", "import torch._dynamo"]
    assert imports((PATCHED, ARGUMENT)) == [
        *("import contextlib", "import math", *always, "from unittest import mock")
    ]
