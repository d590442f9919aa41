"""Minimal reproducers without a model: reasons, code that is read, and passes that reduce it."""

from __future__ import annotations

import ast

from compilewatch.extras.fixes.worker.minimal import (
    Likeness,
    drop_input,
    handling,
    likeness,
    reasons_in,
    undefined,
    without,
)
from compilewatch.extras.fixes.worker.writing import (
    Plain,
    arguments_of,
    attributes_read,
    function_of,
    header_of,
    names_read,
    statements_at,
)

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
    def like(first: str, second: str) -> Likeness:
        return likeness(reason(first), reason(second))

    assert (
        like(
            "method: <Logger transformers.a (ERROR)>.warning, args: ['x']",
            "method: <Logger b (WARNING)>.warning, args: ['y', 3]",
        )
        is Likeness.EXACT
    )
    assert (
        like(
            "setattr(<class 'H'>, 'next_id', 30), source: LocalSource(local_name='self')",
            "setattr(<class 'H'>, 'next_id', 1), source: GlobalSource(global_name='h')",
        )
        is Likeness.EXACT
    )
    assert like("aten.nonzero.default", "aten.item.default") is Likeness.CODE
    assert likeness(reason("x"), "Observed exception: ValueError") is Likeness.NONE
    cut, given_up = reason("aten.nonzero.default"), reason("aten.nonzero.default", GIVEN_UP)
    assert (handling(cut), handling(given_up)) == ("cut", "given up")
    assert likeness(cut, given_up) is Likeness.REASON


PREFIX = (
    "V1125 04:10:42.051000 23753 torch/_dynamo/symbolic_convert.py:100] [0/0] [__graph_breaks] "
)
LOGGED = (
    "Graph break in user code at a.py:3\n"
    "Graph Break Reason: Encountered graph break:\n\nData dependent operator\n"
    "  Explanation: It reads data.\n\nUser code traceback:\n  File a.py\n"
)
RAISED = (
    "Traceback (most recent call last):\n  File a.py\n"
    "torch._dynamo.exc.Unsupported: Attempt to trace generator\n  Explanation: No.\n\n"
    "from user code:\n  File a.py\n"
)


def test_what_torch_printed_is_read_again() -> None:
    logged = "".join(f"{PREFIX}{line}\n" for line in LOGGED.splitlines())
    assert reasons_in(logged) == [
        "Encountered graph break:\n\nData dependent operator\n  Explanation: It reads data."
    ]
    assert reasons_in(RAISED) == ["Attempt to trace generator\n  Explanation: No."]


def counted(values: list[int], *, least: int = 0) -> int:
    """Add what is at least `least`."""
    total: int = 0
    for value in values:
        if value >= least:
            total += value
    return total


FIRST = counted.__code__.co_firstlineno


def test_a_function_is_found_by_its_code_and_written_plainly() -> None:
    written = ast.unparse(Plain().visit(function_of(counted.__code__)))
    assert written.startswith("def counted(values, *, least=0):\n    total = 0\n    for value in")

    def double(x: int) -> int:
        return (lambda y: 2 * y)(x)

    inner = next(c for c in double.__code__.co_consts if hasattr(c, "co_code"))
    assert ast.unparse(function_of(inner)) == "lambda y: 2 * y"


def test_statements_at_a_line_come_innermost_first() -> None:
    names = [type(node).__name__ for node in statements_at(counted.__code__, FIRST + 5)]
    assert names == ["AugAssign", "If", "For"]
    header = header_of(statements_at(counted.__code__, FIRST + 3)[0])
    assert header is not None
    assert ast.unparse(header) == "for value in values:\n    pass"
    assert header_of(ast.parse("x = 1").body[0]) is None


def test_what_code_needs_is_what_it_reads_and_does_not_bind() -> None:
    def names(code: str) -> list[str]:
        return names_read(ast.parse(code).body[0])

    assert names("def f(x):\n    y = g(x)\n    return [z + k for z in y]") == ["g", "k"]
    assert names("x = x + [y for y in z]") == ["x", "z"]
    assert names("total += 1") == ["total"]
    read = attributes_read(ast.parse("a.b.c() + getattr(a, 'd', None)"))
    assert read == {"b", "c", "c()", "d", "getattr()"}


def test_arguments_of_a_call_are_pieces_of_their_own() -> None:
    call = ast.parse("check(x[mask].numel() == n, f'{x}', y)").body[0]
    assert [ast.unparse(argument) for argument in arguments_of(call)] == ["x[mask].numel() == n"]
    assert arguments_of(ast.parse("x.check(y + 1)").body[0]) == []


SOURCE = """import torch
def f(x, unused):
    return x.item()
torch.compile(f, backend='eager')(torch.ones(1), None)"""


def test_a_parameter_is_left_out_with_its_argument() -> None:
    tried: list[str] = []

    def shows_it(source: str) -> bool:
        tried.append(source)
        return "def f(x" in source

    smaller = without(SOURCE, shows_it, drop_input)
    assert "def f(x):" in smaller
    assert smaller.endswith("(torch.ones(1))")
    assert len(tried) == 2


def test_a_name_that_nothing_defines_needs_no_run() -> None:
    assert undefined("import torch\nf(1)")
    assert not undefined("def f(x):\n    return len(x)\nf([1])")
