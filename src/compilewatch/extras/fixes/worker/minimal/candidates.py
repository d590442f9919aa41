"""Candidates of a reproducer: pieces of the code that broke, smallest first.

Each candidate is a file of plain PyTorch that ends with a call of `torch.compile`. The pieces are
the statement at the graph break and the function around it, for the innermost frame of the library
and for its callers. Some graph breaks only occur below a frame that Dynamo has given up: for these,
a loop with a graph break of its own comes first, after which the function runs in eager mode.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from compilewatch.extras.fixes.worker.minimal.code import (
    COMPREHENSIONS,
    arguments_of,
    function_of,
    header_of,
    names_read,
    statements_at,
)
from compilewatch.extras.fixes.worker.minimal.frames import Frame
from compilewatch.extras.fixes.worker.minimal.values import is_plain_module
from compilewatch.extras.fixes.worker.minimal.writing import Writer
from compilewatch.records import Record

MOST_ROOTS = 6
MOST_LINES = 500
MOST_PASSES = 6
MOST_CHARACTERS = 200_000

GIVEN_UP = ("for _ in range(1):", "    torch._dynamo.graph_break()")
"""Lines after which Dynamo gives up a function: it cannot resume in a loop."""


class ReproducerCandidate(Record, frozen=True, kw_only=True):
    """A file and what it is made from: `form` says it, for readers of a report."""

    form: str
    source: str


def candidates(frames: Iterable[Frame]) -> Iterator[ReproducerCandidate]:
    """Candidates from the frames at a graph break, innermost first. Equal files come once."""
    reached = frozenset(frame.code for frame in frames)
    seen: set[str] = set()
    for depth, frame in enumerate(_roots(frames)):
        where = f"{frame.code.co_name}, {depth} calls above" if depth else frame.code.co_name
        for form, write in _forms(frame):
            for exact, decorators in ((False, False), (True, False), (False, True)):
                source = _complete(write, reached, exact=exact, decorators=decorators)
                if source is not None and source not in seen:
                    seen.add(source)
                    yield ReproducerCandidate(form=f"{form} of {where}", source=source)


def _roots(frames: Iterable[Frame]) -> list[Frame]:
    """The frames of the library's own functions, innermost first."""
    own = (
        frame
        for frame in frames
        if frame.code.co_name not in COMPREHENSIONS
        and not is_plain_module(str(frame.globals.get("__name__", "torch")))
    )
    return [frame for frame, _ in zip(own, range(MOST_ROOTS), strict=False)]


Write = Callable[[Writer], list[str]]


def _forms(frame: Frame) -> Iterator[tuple[str, Write]]:
    statements = statements_at(frame.code, frame.line)
    pieces: list[tuple[str, ast.stmt]] = []
    if statements:
        pieces += [
            ("an argument in the statement", argument) for argument in arguments_of(statements[0])
        ]
    for number, statement in enumerate(statements[:3]):
        header = header_of(statement)
        if header is not None and number == 0:
            pieces.append(("the first line of the statement", header))
        pieces.append(("the statement" if number == 0 else "the block", statement))
    for form, statement in pieces:
        yield form, lambda writer, s=statement: _statement(writer, frame, s)  # type: ignore[misc]
    if pieces:
        whole = next(p for p in pieces if p[0] != "an argument in the statement")
        first = whole[1]
        yield (
            f"{whole[0]}, in a loop,",
            lambda writer: _statement(writer, frame, first, around="for _ in range(2):"),
        )
    if frame.called is not None:
        yield "the function", lambda writer: _function(writer, frame)
    for form, statement in pieces:
        yield (
            f"{form}, in a function that runs in eager mode,",
            lambda writer, s=statement: _statement(writer, frame, s, before=GIVEN_UP),  # type: ignore[misc]
        )


def _complete(
    write: Write, reached: frozenset[Any], *, exact: bool, decorators: bool
) -> str | None:
    """The file, written again until it has each attribute that its own code reads."""
    attributes: set[str] = set()
    for _ in range(MOST_PASSES):
        known = len(attributes)
        writer = Writer(attributes, reached, exact=exact, decorators=decorators)
        try:
            text = writer.text(write(writer))
        except RecursionError:
            return None
        if len(attributes) == known:
            break
    too_large = text.count("\n") > MOST_LINES or len(text) > MOST_CHARACTERS
    return None if too_large or not _compiles(text) else text


def _compiles(text: str) -> bool:
    try:
        compile(text, "reproducer.py", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _statement(
    writer: Writer,
    frame: Frame,
    statement: ast.stmt,
    *,
    around: str = "",
    before: tuple[str, ...] = (),
) -> list[str]:
    """A function of the local variables that a statement reads, and its call."""
    writer.reads(statement)
    names = names_read(statement)
    inputs = [n for n in names if n in frame.values and not _is_code(frame.values[n])]
    renamed = writer.defined_names([n for n in names if n not in inputs], frame.scope)
    copied = ast.parse(ast.unparse(statement)).body[0]
    for node in ast.walk(copied):
        if isinstance(node, ast.Name):
            node.id = renamed.get(node.id, node.id)
    arguments = [writer.expression(frame.values[n], n) for n in inputs]
    body = ast.unparse(copied).splitlines()
    if around:
        body = [around, *("    " + line for line in body)]
    lines = [f"def f({', '.join(inputs)}):", *("    " + line for line in (*before, *body))]
    return [*lines, f"torch.compile(f, backend='eager')({', '.join(arguments)})"]


def _is_code(value: Any) -> bool:
    return isinstance(
        value, type | types.FunctionType | types.ModuleType | types.BuiltinFunctionType
    )


def _function(writer: Writer, frame: Frame) -> list[str]:
    """The whole function with the arguments of its call."""
    node = function_of(frame.code)
    assert frame.called is not None
    if not isinstance(node, ast.FunctionDef):
        return ["raise NotImplementedError"]
    node.decorator_list = []
    for default in (*node.args.defaults, *node.args.kw_defaults):
        if default is not None and not isinstance(default, ast.Constant):
            _replace_by_none(node, default)
    written = writer.code(node, "f", {**frame.globals, **frame.called})
    code, called = frame.code, frame.called
    positional = code.co_varnames[: code.co_argcount]
    keywords = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    arguments = [writer.expression(called[n], n) for n in positional]
    if node.args.vararg is not None:
        arguments += [writer.expression(inner, "x") for inner in called[node.args.vararg.arg]]
    arguments += [f"{n}={writer.expression(called[n], n)}" for n in keywords]
    if node.args.kwarg is not None:
        given = called[node.args.kwarg.arg]
        arguments += [f"{n}={writer.expression(v, n)}" for n, v in given.items()]
    return [written, f"torch.compile(f, backend='eager')({', '.join(arguments)})"]


def _replace_by_none(node: ast.FunctionDef, default: ast.expr) -> None:
    none = ast.Constant(None)
    node.args.defaults = [none if each is default else each for each in node.args.defaults]
    node.args.kw_defaults = [none if e is default else e for e in node.args.kw_defaults]
