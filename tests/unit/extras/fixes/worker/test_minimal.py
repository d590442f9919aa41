"""Minimal reproducers without a model: reasons, code that is read, and passes that reduce it."""

import ast

import pytest

from compilewatch.errors import InputsError
from compilewatch.extras.fixes.worker import minimal, writing
from compilewatch.records import StackFrame
from tests.factories import graph_break

CALL = "Encountered graph break when attempting to trace CALL: a function call, e.g. f(x, y):\n\n"
GIVEN_UP = (
    "Failed to handle graph break gracefully. Skipping the function and falling back to eager. "
    "Graph break encountered:\n\n"
)


def reason(context: str, wrapper: str = CALL) -> str:
    return (
        f"{wrapper}Data dependent operator\n  Explanation: Operator `{context}` has a non-Tensor "
        f"output.\n  Hint: Consider it.\n\n  Developer debug context: {context}\n\n"
        " For more details about this graph break, please visit: https://example.org/gb.html"
    )


def test_reasons_are_alike_whatever_objects_and_numbers_they_name() -> None:
    for first, second, degree in (
        (
            "method: <Logger transformers.a (ERROR)>.warning, args: ['x']",
            "method: <Logger b (WARNING)>.warning, args: ['y', 3]",
            minimal.Likeness.EXACT,
        ),
        (
            "setattr(<class 'H'>, 'next_id', 30), source: LocalSource(local_name='self')",
            "setattr(<class 'H'>, 'next_id', 1), source: GlobalSource(global_name='h')",
            minimal.Likeness.EXACT,
        ),
        ("aten.nonzero.default", "aten.item.default", minimal.Likeness.CODE),
    ):
        assert minimal.likeness(reason(first), reason(second)) is degree
    assert minimal.likeness(reason("x"), "Observed exception: ValueError") is minimal.Likeness.NONE
    cut, given_up = reason("aten.nonzero.default"), reason("aten.nonzero.default", GIVEN_UP)
    assert (minimal.handling(cut), minimal.handling(given_up)) == ("cut", "given up")
    assert minimal.likeness(cut, given_up) is minimal.Likeness.REASON


PREFIX = "V1125 04:10:42.051000 2375 torch/_dynamo/symbolic_convert.py:1] [0/0] [__graph_breaks] "
LOGGED = """\
Graph break in user code at a.py:3
Graph Break Reason: Encountered graph break:

Data dependent operator
  Explanation: It reads data.

User code traceback:
  File a.py
"""
RAISED = """\
Traceback (most recent call last):
  File a.py
torch._dynamo.exc.Unsupported: Attempt to trace generator
  Explanation: No.

from user code:
  File a.py
"""


def test_what_torch_printed_is_read_again() -> None:
    logged = "".join(f"{PREFIX}{line}\n" for line in LOGGED.splitlines())
    assert minimal.reasons_in(logged) == [
        "Encountered graph break:\n\nData dependent operator\n  Explanation: It reads data."
    ]
    assert minimal.reasons_in(RAISED) == ["Attempt to trace generator\n  Explanation: No."]


def test_what_code_needs_is_what_it_reads_and_does_not_bind() -> None:
    def names(code: str) -> list[str]:
        return writing.names_read(ast.parse(code).body[0])

    assert names("def f(x):\n    y = g(x)\n    return [z + k for z in y]") == ["g", "k"]
    assert names("x = x + [y for y in z]") == ["x", "z"]
    assert names("total += 1") == ["total"]
    read = writing.attributes_read(ast.parse("a.b.c() + getattr(a, 'd', None)"))
    assert read == {"b", "c", "c()", "d", "getattr()"}
    # Arguments of a call are pieces of their own.
    call = ast.parse("check(x[mask].numel() == n, f'{x}', y)").body[0]
    assert [ast.unparse(argument) for argument in writing.arguments_of(call)] == [
        "x[mask].numel() == n"
    ]
    assert writing.arguments_of(ast.parse("x.check(y + 1)").body[0]) == []


SOURCE = """import torch
def f(x, unused):
    return x.item()
torch.compile(f, backend='eager')(torch.ones(1), None)"""


def test_a_parameter_is_left_out_with_its_argument() -> None:
    tried: list[str] = []

    def shows_it(source: str) -> bool:
        tried.append(source)
        return "def f(x" in source

    smaller = minimal.without(SOURCE, shows_it, minimal.drop_input)
    assert "def f(x):" in smaller
    assert smaller.endswith("(torch.ones(1))")
    assert len(tried) == 2
    # A name that nothing defines needs no run.
    assert minimal.undefined("import torch\nf(1)")
    assert not minimal.undefined("def f(x):\n    return len(x)\nf([1])")


def test_a_graph_break_is_chosen_by_its_code_or_the_end_of_its_place() -> None:
    breaks = graph_break("f", "GB0001", line=3), graph_break("g", "GB0002", line=4)
    for at, chosen in ((None, 0), ("GB0002", 1), ("modeling_bert.py:4", 1)):
        assert minimal.chosen_break(breaks, at) is breaks[chosen]
    with pytest.raises(InputsError, match=r"^no graph break at x.py:1; there are: .*:3 \(GB0001\)"):
        minimal.chosen_break(breaks, "x.py:1")


@pytest.mark.process  # `uname`
def test_the_draft_says_what_a_report_needs() -> None:
    broken = graph_break(
        explanation="It branches on data.",
        hints=("Use `torch.cond`.",),
        user_stack=(StackFrame(file="bert.py", line=12, function="forward", text="if x > 0:"),),
    )
    text = minimal.draft(broken, "BertModel", "import torch\n", "Data-dependent branching")
    assert text.startswith("# torch.compile: graph break GB0170: Data-dependent branching\n")
    for part in (
        "```python\nimport torch\n```",
        "- torch: ",
        "bert.py:12, in forward",
        "- Use `tor",
    ):
        assert part in text
    # Hints are added where the reason has none.
    reason = "Data-dependent branching\n  Explanation: It branches.\n  Hint: Use `torch.cond`."
    assert "## Explanation" not in minimal.draft(broken, "BertModel", "import torch\n", reason)
