"""A rewrite is proposed at the place of a break, as source that runs and a diff that applies."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from compilewatch.extras.fixes.candidates import Place, proposals, rewritten_lines
from compilewatch.extras.fixes.records import FixChange, FixKind
from compilewatch.extras.fixes.rewriting.changes import patch
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
    given = {"code": "GB0170", "reason": REASON, "fingerprint": str(line), "function": "forward"}
    return GraphBreak(**{**given, "file": file, "line": line, **values})


def proposed(folder: Path, *breaks: GraphBreak) -> list[FixChange]:
    def source_of(file: str) -> str | None:
        path = folder / file
        return path.read_text() if path.is_file() else None

    return list(rewritten_lines(breaks, Place(request=request(), source_of=source_of)))


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
        compiled = torch.compile(module.Model(), backend="eager", fullgraph=True)
        result: torch.Tensor = compiled(x)
        return result


def test_two_rewrites_run_together(folder: Path) -> None:
    changes = proposed(folder, a_break(7), a_break(12))
    assert [each.name for each in changes] == [
        "chosen instead of branched at modeling:12",
        "assigned where a mask is true at modeling:7",
    ]
    assert {each.kind for each in changes} == {FixKind.REWRITE}
    got = run(changes, torch.tensor([1.0, 5.0, float("nan")]))
    assert got.tolist() == [2.0, 0.0, 0.0]


@pytest.mark.process  # the program patch decides whether a diff applies
def test_the_diff_applies(folder: Path) -> None:
    edits = [edit for each in proposed(folder, a_break(7), a_break(12)) for edit in each.edits]
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


@pytest.mark.parametrize(
    "found",
    [
        a_break(7, "torch/nn/functional.py"),  # torch itself is not edited
        a_break(7, "some_library/missing.py"),
        a_break(7, reason="Graph break in a call of a C function", code="GB0142"),
        a_break(18),  # a function that exists once for each call of another
        a_break(5),  # the first line of a function is no statement of it
        a_break(400),
    ],
    ids=["torch", "missing", "another reason", "local function", "def", "beyond the end"],
)
def test_what_is_not_proposed(folder: Path, found: GraphBreak) -> None:
    assert proposed(folder, found) == []


def test_equal_breaks_are_rewritten_together_first(folder: Path) -> None:
    source = textwrap.dedent(LIBRARY) + textwrap.indent(
        "\ndef other(self, x):\n    if x.any():\n        x = x.abs()\n    return x\n", "    "
    )
    (folder / "some_library" / "modeling.py").write_text(source)
    line = source.splitlines().index("        if x.any():") + 1
    changes = proposed(folder, a_break(12), a_break(line))
    assert [len(each.edits) for each in changes] == [2, 1, 1]


def test_a_search_can_do_without_rewrites(folder: Path) -> None:
    place = Place(request=request(), source_of=lambda file: (folder / file).read_text())
    kinds = {each.kind for each in proposals([a_break(7)], place, rewrites=False)}
    assert FixKind.REWRITE not in kinds
