"""A minimal reproducer of a worker that answers here, the draft of an issue, and its duplicates."""

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.environments import Environments
from compilewatch.errors import InputsError
from compilewatch.extras.fixes import minimal_reproducer
from compilewatch.extras.fixes.minimal_reproducer import draft, stored_duplicates
from compilewatch.extras.fixes.records import MinimalReproducer
from compilewatch.records import Plan, StackFrame, Status
from compilewatch.store import Store
from tests import factories

FILE = "import torch\n\ntorch.compile(f, backend='eager', fullgraph=True)(torch.ones(1))\n"
BREAK = factories.graph_break(
    explanation="It branches on data.",
    hints=("Use `torch.cond`.",),
    user_stack=(StackFrame(file="bert.py", line=12, function="forward", text="if x > 0:"),),
)
MADE = MinimalReproducer(
    broken=BREAK,
    source=FILE,
    form="the statement of forward",
    lines=2,
    code="GB0170",
    reason="Data-dependent branching",
    same_reason=True,
    versions={"torch": "2.15.0"},
)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """What is written for what a worker answers."""

    def write(answer: MinimalReproducer | str, *, issue: bool = False) -> tuple[str, str]:
        ended = subprocess.CompletedProcess([], 1, b"", str(answer).encode())
        if not isinstance(answer, str):
            ended = subprocess.CompletedProcess([], 0, msgspec.json.encode(answer), b"")
        monkeypatch.setattr(minimal_reproducer, "oneshot", lambda *_: ended)
        return minimal_reproducer.write(
            Environments(tmp_path), factories.request(), at=None, issue=issue, outputs=tmp_path
        )

    return write


def test_the_file_comes_with_a_note_and_a_failure_is_one_line(written: Any) -> None:
    text, note = written(MADE)
    assert text == FILE
    assert "GB0170" in note
    assert "2 lines, made from the statement of forward" in note
    failed = MinimalReproducer(broken=BREAK, failure="the line is not reached")
    with pytest.raises(InputsError, match=r"^no minimal reproducer of GB0170 at .*not reached$"):
        written(failed)
    with pytest.raises(InputsError, match=r"^BertModel: no graph break occurs$"):
        written("Traceback\nno graph break occurs")


def test_the_draft_says_what_a_report_needs(written: Any) -> None:
    text, _ = written(MADE, issue=True)
    assert text.startswith("# torch.compile: graph break GB0170: Data-dependent branching\n")
    file = f"```python\n{FILE.strip()}\n```"
    for part in (file, "- torch: 2.15.0", "bert.py:12, in forward", "- Use `torch.cond`."):
        assert part in text
    assert "No stored run has another graph break" in text
    # Hints are added where the reason has none.
    reason = "Data-dependent branching\n  Explanation: It branches.\n  Hint: Use `torch.cond`."
    complete = MinimalReproducer(broken=BREAK, source=FILE, code="GB0170", reason=reason)
    assert "## Explanation" not in draft(complete, factories.request(), {})


def test_duplicates_are_found_by_their_fingerprint_and_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    request = factories.request("LlamaModel")
    with store.create_run(
        factories.run(), Plan(requests=(request,), skipped=(), digest="")
    ) as writer:
        other = factories.graph_break("elsewhere")
        breaking = factories.result("LlamaModel", Status.GRAPH_BREAK, breaks=(BREAK, other))
        writer.append(
            [breaking, factories.result("BertModel", Status.GRAPH_BREAK, breaks=(other,))]
        )
        run = writer.finish("finished")
    assert stored_duplicates(store, BREAK.fingerprint) == {run.id: ["LlamaModel"]}
    assert stored_duplicates(store, "0" * 12) == {}
    names = [f"Model{number}" for number in range(7)]
    text = draft(MADE, factories.request(), {"r": names})
    assert "- run r: 7 models: Model0, Model1, Model2, Model3, Model4 and 2 more" in text
