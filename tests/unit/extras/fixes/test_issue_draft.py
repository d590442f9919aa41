"""The draft of an issue, and the stored runs that it lists."""

from __future__ import annotations

from pathlib import Path

from compilewatch.extras.fixes.minimal_reproducer import Duplicate, draft, stored_duplicates
from compilewatch.extras.fixes.records import FreshRun, MinimalReproducer
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
    fresh=FreshRun(code="GB0170", reason="Data-dependent branching", same_reason=True),
)


def test_the_draft_says_what_a_report_needs() -> None:
    text = draft(MADE, factories.request(), {"torch": "2.15.0"}, ())
    assert text.startswith("# torch.compile: graph break GB0170: Data-dependent branching\n")
    for part in (FILE.strip(), "- torch: 2.15.0", "bert.py:12, in forward"):
        assert part in text
    assert "No stored run has another graph break" in text


def test_the_draft_names_some_models_of_each_duplicate() -> None:
    names = tuple(f"Model{number}" for number in range(7))
    text = draft(MADE, factories.request(), {}, (Duplicate(run="r", models=names),))
    assert "- run r: 7 models: Model0, Model1, Model2, Model3, Model4 and 2 more" in text


def test_duplicates_are_found_by_their_fingerprint(tmp_path: Path) -> None:
    store = Store(tmp_path)
    request = factories.request("LlamaModel")
    with store.create_run(
        factories.run(), Plan(requests=(request,), skipped=(), digest="")
    ) as writer:
        other = factories.graph_break("elsewhere")
        writer.append(
            [
                factories.result("LlamaModel", Status.GRAPH_BREAK, breaks=(BREAK, other)),
                factories.result("BertModel", Status.GRAPH_BREAK, breaks=(other,)),
            ]
        )
        run = writer.finish("finished")
    (found,) = stored_duplicates(store, BREAK.fingerprint)
    assert found == Duplicate(run=run.id, models=("LlamaModel",))
    assert stored_duplicates(store, "0" * 12) == ()


def test_hints_are_added_where_the_reason_has_none() -> None:
    text = draft(MADE, factories.request(), {}, ())
    assert "- Use `torch.cond`." in text
    reason = "Data-dependent branching\n  Explanation: It branches.\n  Hint: Use `torch.cond`."
    fresh = FreshRun(code="GB0170", reason=reason, same_reason=True)
    complete = MinimalReproducer(broken=BREAK, source=FILE, fresh=fresh)
    assert "## Explanation" not in draft(complete, factories.request(), {}, ())
