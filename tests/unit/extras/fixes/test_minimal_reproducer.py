"""What the command gets of a worker's answer, and the errors of one line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from compilewatch.environments import Environments
from compilewatch.errors import InputsError
from compilewatch.extras.fixes import minimal_reproducer
from compilewatch.extras.fixes.records import (
    FreshRun,
    MinimalOrder,
    MinimalOutcome,
    MinimalReproducer,
)
from compilewatch.records import Record
from tests import factories

BREAK = factories.graph_break()
MADE = MinimalReproducer(
    broken=BREAK,
    source="import torch\n",
    form="the statement of forward",
    lines=1,
    checks=9,
    fresh=FreshRun(code="GB0170", reason="reason", same_reason=True),
)


class Answer:
    """A worker that gives one answer and keeps its order."""

    def __init__(self, answer: Record | str) -> None:
        self._answer = answer
        self.orders: list[MinimalOrder] = []

    def __call__(
        self, chosen: object, verb: str, request: bytes, timeout_seconds: float
    ) -> subprocess.CompletedProcess[bytes]:
        assert verb == "minimal"
        self.orders.append(msgspec.json.decode(request, type=MinimalOrder))
        if isinstance(self._answer, str):
            return subprocess.CompletedProcess([], 1, b"", self._answer.encode())
        return subprocess.CompletedProcess([], 0, msgspec.json.encode(self._answer), b"")


def written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: Record | str, *, issue: bool = False
) -> minimal_reproducer.Written:
    monkeypatch.setattr(minimal_reproducer, "oneshot", Answer(answer))
    return minimal_reproducer.write(
        Environments(tmp_path), factories.request(), at=None, issue=issue, outputs=tmp_path
    )


def test_the_file_comes_with_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outcome = MinimalOutcome(reproducers=(MADE,), versions={})
    text, note = written(monkeypatch, tmp_path, outcome)
    assert text == "import torch\n"
    assert "GB0170" in note
    assert "1 lines, made from the statement of forward" in note


def test_a_draft_has_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outcome = MinimalOutcome(reproducers=(MADE,), versions={"torch": "2.15.0"})
    text, _ = written(monkeypatch, tmp_path, outcome, issue=True)
    assert "```python\nimport torch\n```" in text


def test_a_failure_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed = MinimalReproducer(broken=BREAK, failure="the line is not reached")
    outcome = MinimalOutcome(reproducers=(failed,), versions={})
    with pytest.raises(InputsError, match=r"^no minimal reproducer of GB0170 at .*not reached$"):
        written(monkeypatch, tmp_path, outcome)
    with pytest.raises(InputsError, match=r"^BertModel: no graph break occurs$"):
        written(monkeypatch, tmp_path, "Traceback\nno graph break occurs")
