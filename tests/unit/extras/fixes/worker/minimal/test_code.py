"""Reading functions and statements: what they are, and which names they need."""

from __future__ import annotations

import ast

from compilewatch.extras.fixes.worker.minimal.writing import (
    Plain,
    arguments_of,
    attributes_read,
    function_of,
    header_of,
    names_read,
    statements_at,
)


def counted(values: list[int], *, least: int = 0) -> int:
    """Add what is at least `least`."""
    total: int = 0
    for value in values:
        if value >= least:
            total += value
    return total


FIRST = counted.__code__.co_firstlineno


def test_a_function_is_found_by_its_code() -> None:
    found = function_of(counted.__code__)
    assert isinstance(found, ast.FunctionDef)
    assert found.name == "counted"


def test_a_lambda_is_found_by_its_code() -> None:
    def double(x: int) -> int:
        return (lambda y: 2 * y)(x)

    inner = next(c for c in double.__code__.co_consts if hasattr(c, "co_code"))
    found = function_of(inner)
    assert found is not None
    assert ast.unparse(found) == "lambda y: 2 * y"


def test_statements_at_a_line_come_innermost_first() -> None:
    found = statements_at(counted.__code__, FIRST + 5)
    assert [type(each).__name__ for each in found] == ["AugAssign", "If", "For"]


def test_the_header_of_a_loop_has_no_body() -> None:
    loop = statements_at(counted.__code__, FIRST + 3)[0]
    header = header_of(loop)
    assert header is not None
    assert ast.unparse(header) == "for value in values:\n    pass"
    assert header_of(ast.parse("x = 1").body[0]) is None


def test_a_function_needs_what_it_does_not_bind() -> None:
    node = ast.parse("def f(x):\n    y = g(x)\n    return [z + k for z in y]").body[0]
    assert names_read(node) == ["g", "k"]


def test_a_statement_needs_what_it_reads_even_if_it_assigns_it() -> None:
    assert names_read(ast.parse("x = x + [y for y in z]").body[0]) == ["x", "z"]
    assert names_read(ast.parse("total += 1").body[0]) == ["total"]


def test_attributes_are_also_read_by_getattr() -> None:
    node = ast.parse("a.b.c + getattr(a, 'd', None)")
    assert attributes_read(node) == {"b", "c", "d"}


def test_annotations_and_docstrings_are_left_out() -> None:
    node = function_of(counted.__code__)
    assert node is not None
    written = ast.unparse(ast.fix_missing_locations(Plain({"values": "items"}).visit(node)))
    assert written.startswith("def counted(values, *, least=0):\n    total = 0\n")
    assert "for value in items" in written


def test_arguments_of_a_call_are_pieces_of_their_own() -> None:
    call = ast.parse("check(x[mask].numel() == n, f'{x}', y)").body[0]
    assert [ast.unparse(each) for each in arguments_of(call)] == ["x[mask].numel() == n"]
    assert arguments_of(ast.parse("x.check(y + 1)").body[0]) == []
