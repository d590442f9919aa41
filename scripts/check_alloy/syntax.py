"""Alloy's configuration language: text to tokens to a tree.

The grammar is that of the EBNF in grafana/alloy, `syntax/scanner` and `syntax/parser`. What Alloy
refuses is refused here, at the first error, as `AlloyError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias


class AlloyError(Exception):
    """What is wrong with a configuration, and where; `str()` is `file:line: message`."""

    def __init__(self, file: str, line: int, message: str) -> None:
        super().__init__(f"{file}:{line}: {message}")


@dataclass(frozen=True, kw_only=True)
class Token:
    """`kind` is the text itself for operators and brackets, else what `_KINDS` calls it."""

    kind: str
    text: str
    line: int
    start: int
    """Offset in the source, as `end`; the text is between them."""
    end: int


@dataclass(frozen=True, kw_only=True)
class Literal:
    value: str | int | float | bool | None
    line: int


@dataclass(frozen=True, kw_only=True)
class Array:
    elements: tuple[Expression, ...]
    line: int


@dataclass(frozen=True, kw_only=True)
class Object:
    fields: tuple[Attribute, ...]
    line: int


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A dotted name, such as `loki.write.sink.receiver`."""

    name: str
    line: int


@dataclass(frozen=True, kw_only=True)
class Call:
    function: Expression
    arguments: tuple[Expression, ...]
    line: int


@dataclass(frozen=True, kw_only=True)
class Operation:
    """Anything that computes: a unary or binary operator, an index, access to a value's member."""

    operands: tuple[Expression, ...]
    line: int


Expression: TypeAlias = Literal | Array | Object | Reference | Call | Operation


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """`name = value`, in a block or an object; `last_line` is where the value ends."""

    name: str
    value: Expression
    line: int
    last_line: int


@dataclass(frozen=True, kw_only=True)
class Block:
    """`name "label" { body }`; an empty `label` is none."""

    name: str
    label: str
    body: tuple[Attribute | Block, ...]
    line: int
    last_line: int

    def attributes(self) -> tuple[Attribute, ...]:
        return tuple(each for each in self.body if isinstance(each, Attribute))

    def blocks(self) -> tuple[Block, ...]:
        return tuple(each for each in self.body if isinstance(each, Block))


@dataclass(frozen=True, kw_only=True)
class File:
    name: str
    body: tuple[Attribute | Block, ...]
    tokens: tuple[Token, ...]
    """All of them, comments included."""
    block_braces: frozenset[int] = field(default_factory=frozenset)
    """Offsets of the braces that hold blocks rather than objects."""


_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+)
    |(?P<newline>\n)
    |(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<identifier>[^\W\d]\w*)
    |(?P<float>\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
    |(?P<number>\d+)
    |(?P<string>"(?:[^"\\\n]|\\[^\n])*"|`[^`]*`)
    |(?P<operator>\|\||&&|!=|==|<=|>=|(?!/\*)[-!=<>+*/%^{}()\[\],.])""",
    re.VERBOSE | re.DOTALL,
)
_ENDS_STATEMENT = {"identifier", "float", "number", "string", "bool", "null", "}", ")", "]"}
_ESCAPE = re.compile(
    r"""\\(?:[abfnrtv\\"]|[0-3][0-7]{2}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"""
)
_SIMPLE = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True)) | {"\\": "\\", '"': '"'}
_NAMED = {"newline": "the end of the line", "end": "the end of the file"}


def tokenize(file: str, text: str) -> tuple[Token, ...]:
    """All tokens, comments included; a newline is one only where it ends a statement."""
    return tuple(_scan(file, text))


def _scan(file: str, text: str) -> Iterator[Token]:
    offset, line, last = 0, 1, ""
    while offset < len(text):
        match = _TOKEN.match(text, offset)
        if match is None:
            raise AlloyError(file, line, _illegal(text, offset))
        kind, found = str(match.lastgroup), match.group()
        if kind == "identifier":
            kind = {"true": "bool", "false": "bool", "null": "null"}.get(found, kind)
        elif kind == "operator":
            kind = found
        if kind == "comment" or (kind == "newline" and last in _ENDS_STATEMENT):
            yield Token(kind=kind, text=found, line=line, start=offset, end=match.end())
        elif kind not in ("space", "newline"):
            if kind == "string":
                unquote(file, line, found)
            yield Token(kind=kind, text=found, line=line, start=offset, end=match.end())
        if kind not in ("space", "comment"):
            last = kind
        line += found.count("\n")
        offset = match.end()
    if last in _ENDS_STATEMENT:
        yield Token(kind="newline", text="", line=line, start=offset, end=offset)
    yield Token(kind="end", text="", line=line, start=offset, end=offset)


def _illegal(text: str, offset: int) -> str:
    if text[offset] in '"`':
        return "string literal not terminated"
    if text.startswith("/*", offset):
        return "block comment not terminated"
    if text[offset] == "'":
        return "illegal single-quoted string; use double quotes"
    return f"illegal character {text[offset]!r}"


def unquote(file: str, line: int, text: str) -> str:
    """What a string literal stands for. Raises AlloyError at an escape that Go does not know."""
    if text.startswith("`"):
        return text[1:-1]

    def replace(match: re.Match[str]) -> str:
        escape = match.group()
        if not _ESCAPE.fullmatch(escape):
            raise AlloyError(file, line, f"unknown escape sequence {escape}")
        if escape[1] in _SIMPLE:
            return _SIMPLE[escape[1]]
        code = int(escape[2:], 16) if escape[1] in "xuU" else int(escape[1:], 8)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise AlloyError(file, line, f"{escape} is no Unicode code point")
        return chr(code)

    pattern = r"\\(?:[0-7]{1,3}|x.{0,2}|u.{0,4}|U.{0,8}|.)"
    return re.sub(pattern, replace, text[1:-1])


_PRECEDENCE = (("||",), ("&&",), ("==", "!=", "<", "<=", ">", ">="), ("+", "-"), ("*", "/", "%"))


def parse(file: str, text: str) -> File:
    """The tree of a file. Raises AlloyError at the first thing that Alloy would refuse."""
    tokens = tokenize(file, text)
    parser = _Parser(file, tuple(token for token in tokens if token.kind != "comment"))
    body = parser.body("end")
    return File(name=file, body=body, tokens=tokens, block_braces=frozenset(parser.block_braces))


class _Parser:
    def __init__(self, file: str, tokens: tuple[Token, ...]) -> None:
        self._file = file
        self._tokens = tokens
        self._at = 0
        self.block_braces: set[int] = set()

    @property
    def _now(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._now
        self._at += 1
        return token

    def _expect(self, *kinds: str) -> Token:
        if self._now.kind not in kinds:
            wanted = " or ".join(_NAMED.get(kind, kind) for kind in kinds)
            got = _NAMED.get(self._now.kind, self._now.text)
            raise AlloyError(self._file, self._now.line, f"expected {wanted}, got {got}")
        return self._next()

    def body(self, until: str) -> tuple[Attribute | Block, ...]:
        """Statements up to, not including, `until`; each ends with a line."""
        found: list[Attribute | Block] = []
        while self._now.kind != until:
            if self._now.kind == "end":
                self._expect(until)
            found.append(self._statement())
            if self._now.kind != until:
                self._expect("newline")
        return tuple(found)

    def _statement(self) -> Attribute | Block:
        first = self._expect("identifier")
        parts = [first.text]
        while self._now.kind == ".":
            self._next()
            parts.append(self._expect("identifier").text)
        name = ".".join(parts)
        if self._now.kind == "=":
            if len(parts) > 1:
                raise AlloyError(self._file, first.line, f"an attribute's name has no dot: {name}")
            return self._attribute(first)
        label = self._label() if self._now.kind == "string" else ""
        self.block_braces.add(self._expect(*(("{",) if label or "." in name else ("=", "{"))).start)
        body = self.body("}")
        closing = self._expect("}")
        self.block_braces.add(closing.start)
        return Block(name=name, label=label, body=body, line=first.line, last_line=closing.line)

    def _label(self) -> str:
        token = self._next()
        label = token.text[1:-1]
        if token.text[0] != '"' or not label.isidentifier():
            raise AlloyError(self._file, token.line, f"a label is an identifier: {token.text}")
        return label

    def _attribute(self, name: Token) -> Attribute:
        self._expect("=")
        value = self.expression()
        text = name.text
        if name.kind == "string":
            text = unquote(self._file, name.line, text)
        last = self._tokens[self._at - 1]
        end = last.line + last.text.count("\n")
        return Attribute(name=text, value=value, line=name.line, last_line=end)

    def expression(self, level: int = 0) -> Expression:
        """Binary operators by precedence, all but `^` from the left."""
        if level == len(_PRECEDENCE):
            return self._power()
        left = self.expression(level + 1)
        while self._now.kind in _PRECEDENCE[level]:
            line = self._next().line
            left = Operation(operands=(left, self.expression(level + 1)), line=line)
        return left

    def _power(self) -> Expression:
        left = self._unary()
        if self._now.kind != "^":
            return left
        line = self._next().line
        return Operation(operands=(left, self._power()), line=line)

    def _unary(self) -> Expression:
        if self._now.kind in ("-", "!"):
            operator = self._next()
            operand = self._unary()
            if operator.kind == "-" and isinstance(operand, Literal):
                number = operand.value
                if isinstance(number, int | float) and not isinstance(number, bool):
                    return Literal(value=-number, line=operator.line)
            return Operation(operands=(operand,), line=operator.line)
        return self._operations(self._primary())

    def _operations(self, value: Expression) -> Expression:
        while self._now.kind in (".", "[", "("):
            operator = self._next()
            if operator.kind == "(":
                arguments = self._list(")")
                value = Call(function=value, arguments=arguments, line=operator.line)
            elif operator.kind == "[":
                value = Operation(operands=(value, self.expression()), line=operator.line)
                self._expect("]")
            else:
                member = self._expect("identifier").text
                if isinstance(value, Reference):
                    value = Reference(name=f"{value.name}.{member}", line=value.line)
                else:
                    value = Operation(operands=(value,), line=operator.line)
        return value

    def _primary(self) -> Expression:
        token = self._expect(
            *("identifier", "string", "number", "float", "bool", "null", "(", "[", "{")
        )
        if token.kind == "identifier":
            return Reference(name=token.text, line=token.line)
        if token.kind == "(":
            value = self.expression()
            self._expect(")")
            return value
        if token.kind == "[":
            return Array(elements=self._list("]"), line=token.line)
        if token.kind == "{":
            return Object(fields=self._fields(), line=token.line)
        return Literal(value=self._value(token), line=token.line)

    def _value(self, token: Token) -> str | int | float | bool | None:
        if token.kind == "string":
            return unquote(self._file, token.line, token.text)
        if token.kind == "number":
            return int(token.text)
        if token.kind == "float":
            return float(token.text)
        return {"true": True, "false": False}.get(token.text)

    def _list(self, until: str) -> tuple[Expression, ...]:
        """Expressions between commas, the last of which may stand before the bracket."""
        found: list[Expression] = []
        while self._now.kind != until:
            found.append(self.expression())
            if self._now.kind != until:
                self._expect(",", until)
        self._expect(until)
        return tuple(found)

    def _fields(self) -> tuple[Attribute, ...]:
        found: list[Attribute] = []
        while self._now.kind != "}":
            found.append(self._attribute(self._expect("identifier", "string")))
            if self._now.kind != "}":
                self._expect(",", "}")
        self._expect("}")
        return tuple(found)
