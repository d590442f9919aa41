"""A rewrite is proposed at the place of a break, runs while a context is open, and is a diff."""

import importlib
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from compilewatch.extras.fixes.candidates import Place, proposals, rewritten_lines
from compilewatch.extras.fixes.records import FixChange, FixKind
from compilewatch.extras.fixes.replacements import edited
from compilewatch.extras.fixes.rewriting import patch, site_at
from compilewatch.records import GraphBreak, StackFrame
from tests.factories import request

LIBRARY = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        mask = x > 3
        if mask.any():
            x[mask] = 0
        return self.scaled(x)

    def scaled(self, x):
        if torch.isnan(x).any():
            x = torch.nan_to_num(x)
        return x * 2

    def local(self, x):
        def inside():
            if x.any():
                x[x > 3] = 0

        return inside
"""
REASON = "Data-dependent branching"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "some_library").mkdir()
    (tmp_path / "some_library" / "__init__.py").write_text("")
    (tmp_path / "some_library" / "modeling.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("some_library", "some_library.modeling"):
        sys.modules.pop(name, None)


def a_break(line: int, file: str = "some_library/modeling.py", **values: Any) -> GraphBreak:
    fields = {"code": "GB0170", "reason": REASON, "fingerprint": str(line), "function": "forward"}
    return GraphBreak(**{**fields, "file": file, "line": line, **values})


def place(folder: Path) -> Place:
    def source_of(file: str) -> str | None:
        path = folder / file
        return path.read_text() if path.is_file() else None

    return Place(request=request(), source_of=source_of)


def proposed(folder: Path, *breaks: GraphBreak) -> list[FixChange]:
    return list(rewritten_lines(breaks, place(folder)))


def run(changes: list[FixChange], x: torch.Tensor) -> torch.Tensor:
    """Call the model under changes, as the source that a user pastes."""
    with ExitStack() as stack:
        names: dict[str, Any] = {"stack": stack, "torch": torch}
        for text in dict.fromkeys(t for c in changes for t in (*c.imports, *c.definitions)):
            exec(compile(text, "<fix>", "exec", dont_inherit=True), names)  # as in a new file
        for each in changes:
            exec("\n".join(each.lines), names)
        module = importlib.import_module("some_library.modeling")
        torch._dynamo.reset()
        result: torch.Tensor = torch.compile(module.Model(), backend="eager", fullgraph=True)(x)
        return result


@pytest.mark.process  # the program patch decides whether a diff applies
def test_two_rewrites_run_together_and_their_diff_applies(folder: Path) -> None:
    changes = proposed(folder, a_break(7), a_break(12))
    assert [each.name for each in changes] == [
        "chosen instead of branched at modeling:12",
        "assigned where a mask is true at modeling:7",
    ]
    assert {each.kind for each in changes} == {FixKind.REWRITE}
    assert run(changes, torch.tensor([1.0, 5.0, float("nan")])).tolist() == [2.0, 0.0, 0.0]
    edits = [edit for each in changes for edit in each.edits]
    text = patch(edits, lambda file: (folder / file).read_text())
    subprocess.run(["patch", "-p1"], input=text, text=True, cwd=folder, check=True)
    patched = (folder / "some_library" / "modeling.py").read_text()
    assert "torch.where(torch.isnan(x).any(), torch.nan_to_num(x), x)" in patched
    assert "if mask.any():" not in patched
    assert "def local(self, x):" in patched


def test_the_innermost_place_of_a_library_counts(folder: Path) -> None:
    frames = (
        StackFrame(file="some_library/modeling.py", line=7, function="forward"),
        StackFrame(file="torch/nn/functional.py", line=1, function="pad"),
    )
    changes = proposed(folder, a_break(1, "torch/nn/functional.py", user_stack=frames))
    assert [each.edits[0].line for each in changes] == [7]


def test_what_is_not_proposed(folder: Path) -> None:
    for graph_break in (
        a_break(7, "torch/nn/functional.py"),  # torch itself is not edited
        a_break(7, "some_library/missing.py"),
        a_break(7, reason="Graph break in a call of a C function", code="GB0142"),
        a_break(18),  # a function that exists once for each call of another
        a_break(5),  # the first line of a function is no statement of it
        a_break(400),
    ):
        assert proposed(folder, graph_break) == [], graph_break
    kinds = {each.kind for each in proposals([a_break(7)], place(folder), rewrites=False)}
    assert FixKind.REWRITE not in kinds
    # The line of a break may be empty, a comment, the head of a function or outside of it.
    source = "def forward(x):\n    y = x\n\n    # a comment\n    return y\n"
    assert [site_at(source, "library/module.py", line) for line in (1, 3, 4, 6)] == [None] * 4


def test_equal_breaks_are_rewritten_together_first(folder: Path) -> None:
    other = "\ndef other(self, x):\n    if x.any():\n        x = x.abs()\n    return x\n"
    source = LIBRARY + textwrap.indent(other, "    ")
    (folder / "some_library" / "modeling.py").write_text(source)
    line = source.splitlines().index("        if x.any():") + 1
    changes = proposed(folder, a_break(12), a_break(line))
    assert [len(each.edits) for each in changes] == [2, 1, 1]


# --- what is in force -----------------------------------------------------------------------------

EDITED = """
import functools
def traced(function):
    @functools.wraps(function)
    def wrapper(*args):
        return ["traced", function(*args)]
    return wrapper
class Base:
    def name(self):
        return "base"
class Model(Base):
    def name(self):
        first = "model"
        second = super().name()
        return f"{first} of {second}"
    @traced
    def decorated(self):
        value = 1
        return value
    @staticmethod
    def fixed():
        value = 1
        return value
    @property
    def size(self):
        value = 1
        return value
    def fails(self):
        value = 0
        # A comment that remains.
        return 1 / value
def twice():
    value = 1
    value = 1
    return value
def squares(numbers):
    factor = 2
    return [factor * each for each in numbers]
"""

FIRST = ('        first = "model"\n', '        first = "edited"\n')
SECOND = ("        second = super().name()\n", "        second = super().name().upper()\n")
BOTH = (FIRST[0] + SECOND[0], "        first = second = super().name()\n")
TWO = ("        value = 1\n", "        value = 2\n")
FACTOR = ("    factor = 2\n", "    factor = 3\n")
ZERO = "        value = 0\n"
LISTED = ("    factor = 2\n", "    numbers = list(numbers)\n    factor = 2\n")


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "edited_library.py").write_text(EDITED)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("edited_library")
    del sys.modules["edited_library"]


@pytest.mark.parametrize(
    ("path", "edits", "call", "expected"),
    [
        ("Model.decorated", [TWO], "Model().decorated()", ["traced", 2]),
        ("Model.fixed", [TWO], "Model.fixed()", 2),
        ("Model.size", [TWO], "Model().size", 2),
        ("Model.name", [FIRST], "Model().name()", "edited of base"),
        ("Model.name", [FIRST, SECOND], "Model().name()", "edited of BASE"),  # they add up
        ("Model.name", [BOTH], "Model().name()", "base of base"),  # several lines on fewer
        ("squares", [FACTOR], "squares([1, 2])", [3, 6]),
        ("squares", [LISTED, FACTOR], "squares(iter([1]))", [3]),  # what another one inserted
    ],
)
def test_edits_are_in_force_while_their_contexts_are_open(
    library: ModuleType, path: str, edits: list[tuple[str, str]], call: str, expected: object
) -> None:
    names = vars(library)
    before = eval(call, names)
    results = []
    for _ in range(2):
        with ExitStack() as stack:
            for edit in edits:
                stack.enter_context(edited("edited_library", path, edit))
            results.append(eval(call, names))
    assert results == [expected] * 2
    assert eval(call, names) == before


def test_the_same_edit_is_the_same_code_at_each_entry(library: ModuleType) -> None:
    """Or PyTorch would compile at each entry."""
    codes = []
    for _ in range(2):
        with edited("edited_library", "squares", FACTOR):
            codes.append(library.squares.__code__)
    assert codes[0] is codes[1]
    # Lines keep their numbers.
    line = EDITED.splitlines().index("        return 1 / value") + 1
    edit = edited("edited_library", "Model.fails", (ZERO, "        a = 0\n        value = a\n"))
    with edit, pytest.raises(ZeroDivisionError) as raised:
        library.Model().fails()
    assert traceback.extract_tb(raised.tb)[-1].lineno == line


def test_lines_that_are_not_there_once_are_an_error(library: ModuleType) -> None:
    for path, old in (("squares", "    factor = 4\n"), ("twice", "    value = 1\n")):
        function = getattr(library, path)
        before, edit = function.__code__, edited("edited_library", path, (old, ""))
        with pytest.raises(RuntimeError, match="differs"), edit:
            pass
        assert function.__code__ is before
