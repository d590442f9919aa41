"""Would `alloy fmt` leave a file as it is? By the rules of grafana/alloy's `syntax/printer`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from scripts.check_alloy.syntax import (
    AlloyError,
    Array,
    Attribute,
    Block,
    Call,
    Expression,
    File,
    Object,
    Operation,
    Token,
)

_OPENING, _CLOSING = ("{", "[", "("), ("}", "]", ")")


def check_layout(file: File, text: str) -> list[AlloyError]:
    """What `alloy fmt` would change, by line."""
    lines = text.split("\n")
    tokens = [token for token in file.tokens if token.kind not in ("newline", "end")]
    found = [
        *_ends(lines),
        *_indents(tokens, lines),
        *_gaps(tokens, text, file.block_braces),
        *_commas(tokens, file.block_braces),
        *_blanks(tokens, lines),
        *_statements(file.body, lines),
    ]
    return [AlloyError(file.name, line, message) for line, message in sorted(set(found))]


Problem = tuple[int, str]


def _ends(lines: list[str]) -> Iterator[Problem]:
    for number, line in enumerate(lines, start=1):
        if line != line.rstrip():
            yield number, "white space at the end of the line"
    if lines[-1] or lines[-2:] == ["", ""]:
        yield len(lines), "a file ends with one end of line"


def _first_in_line(tokens: list[Token]) -> set[int]:
    """The offsets of tokens that nothing precedes in their line."""
    lasts = [0, *(token.line + token.text.count("\n") for token in tokens)]
    return {token.start for last, token in zip(lasts, tokens, strict=False) if token.line > last}


def _indents(tokens: list[Token], lines: list[str]) -> Iterator[Problem]:
    """A bracket indents what follows it where that begins a line."""
    first = _first_in_line(tokens)
    open_brackets: list[bool] = []
    for token, following in pairwise([*tokens, tokens[-1]]):
        if token.kind in _CLOSING:
            open_brackets.pop()
        line = lines[token.line - 1]
        indent = "\t" * sum(open_brackets)
        if token.start in first and line[: len(line) - len(line.lstrip())] != indent:
            yield token.line, f"indent with {len(indent)} tab{'s'[: len(indent) != 1]}"
        if token.kind in _OPENING:
            open_brackets.append(following.line > token.line)


def _gaps(tokens: list[Token], text: str, blocks: frozenset[int]) -> Iterator[Problem]:
    """Between two tokens of a line; the `=` after the first one is a matter of alignment."""
    first = _first_in_line(tokens)
    for left, right in pairwise(tokens):
        computed = {left.kind, right.kind} & {"-", "!", "comment"}
        aligned = right.kind == "=" and left.start in first
        if right.start in first or computed or aligned:
            continue
        tight = (
            right.kind in (",", ")", "]", ".")
            or left.kind in ("(", "[", ".")
            or (right.kind in ("(", "[") and left.kind in ("identifier", ")", "]"))
            or (left.kind == "{" and left.start not in blocks)
            or (right.kind == "}" and right.start not in blocks)
        )
        if text[left.end : right.start] != ("" if tight else " "):
            wanted = "no space" if tight else "one space"
            yield right.line, f"{wanted} between {left.text} and {right.text}"


def _commas(tokens: list[Token], blocks: frozenset[int]) -> Iterator[Problem]:
    """After the last element where the bracket closes on a line of its own, and nowhere else."""
    first = _first_in_line(tokens)
    written = [token for token in tokens if token.kind != "comment"]
    for last, closing in pairwise(written):
        if closing.kind not in _CLOSING or closing.start in blocks or last.kind in _OPENING:
            continue
        if closing.start in first and last.kind != ",":
            yield last.line, f"a comma after {last.text}"
        if closing.start not in first and last.kind == ",":
            yield last.line, f"no comma before {closing.text}"


def _blanks(tokens: list[Token], lines: list[str]) -> Iterator[Problem]:
    """Never two blank lines, nor one next to a bracket that encloses lines."""
    for number, (line, following) in enumerate(pairwise(lines[:-1]), start=1):
        if not line and not following:
            yield number, "one blank line is enough"
    if lines[0] == "":
        yield 1, "no blank line at the beginning"
    for left, right in pairwise(tokens):
        if right.line > left.line + left.text.count("\n") + 1:
            if left.kind in _OPENING:
                yield left.line + 1, f"no blank line after {left.text}"
            if right.kind in _CLOSING:
                yield right.line - 1, f"no blank line before {right.text}"


def _statements(body: Iterable[Attribute | Block], lines: list[str]) -> Iterator[Problem]:
    """Blocks stand apart; the `=` of attributes in successive lines are aligned."""
    run: list[Attribute] = []
    previous: Attribute | Block | None = None
    for statement in body:
        apart = previous is None or statement.line > previous.last_line + 1
        if isinstance(statement, Block):
            if previous and "" not in lines[previous.last_line : statement.line - 1]:
                yield statement.line, f"a blank line before {statement.name}"
            yield from _statements(statement.body, lines)
        else:
            multiline = isinstance(previous, Attribute) and previous.last_line > previous.line
            if apart or multiline or isinstance(previous, Block):
                yield from _aligned(run, lines)
                run = []
            run.append(statement)
            yield from _values([statement.value], lines)
        previous = statement
    yield from _aligned(run, lines)


def _values(values: Iterable[Expression], lines: list[str]) -> Iterator[Problem]:
    for value in values:
        match value:
            case Array(elements=inner) | Call(arguments=inner) | Operation(operands=inner):
                yield from _values(inner, lines)
            case Object(fields=fields):
                yield from _values([each.value for each in fields], lines)
                run: list[Attribute] = []
                for previous, each in zip([None, *fields], fields, strict=False):
                    if previous and previous.last_line > previous.line:
                        yield from _aligned(run, lines)
                        run = []
                    run.append(each)
                one_each = len({each.line for each in run}) == len(run)
                if run and one_each and value.line < run[0].line:
                    yield from _aligned(run, lines)


def _aligned(run: list[Attribute], lines: list[str]) -> Iterator[Problem]:
    written = {each.line: lines[each.line - 1].lstrip().split("=")[0] for each in run}
    width = max((len(name.rstrip()) for name in written.values()), default=0)
    for line, name in written.items():
        if name != name.rstrip().ljust(width) + " ":
            yield line, f"align the = of {name.rstrip()} with those above and below"
