"""Would Alloy load these files together? As `alloy validate` asks, and a little more strictly."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from scripts.check_alloy.components import (
    COMPONENTS,
    CONSTANTS,
    FUNCTIONS,
    VERSION,
    AttributeSpec,
    BlockSpec,
)
from scripts.check_alloy.syntax import (
    AlloyError,
    Array,
    Attribute,
    Block,
    Call,
    Expression,
    File,
    Literal,
    Object,
    Operation,
    Reference,
)

_LABEL = r"[a-zA-Z_][a-zA-Z0-9_]*"
_MATCHER = rf'{_LABEL}\s*(=|!=|=~|!~)\s*"[^"]*"'
_FORMATS = {
    "duration": r"(\d+(\.\d*)?(ns|us|µs|ms|s|m|h))+",
    "label": _LABEL,
    "selector": rf"\{{\s*{_MATCHER}(\s*,\s*{_MATCHER})*\s*}}.*",
    "size": r"\d+(\.\d+)?([KMGT]i?)?B",
    "url": r"https?://[^/\s]+(/\S*)?",
}
"""Types that a string must be written for; `regex` is one more."""


def check(files: Iterable[File]) -> list[AlloyError]:
    """All that is wrong with the files, which Alloy reads as one; in the order they were given."""
    return _Checker(tuple(files)).problems()


class _Checker:
    def __init__(self, files: tuple[File, ...]) -> None:
        self._files = files
        self._file = ""
        self._problems: list[AlloyError] = []
        self._defined: dict[str, tuple[str, Block]] = {}
        self._used: set[str] = set()

    def problems(self) -> list[AlloyError]:
        for file in self._files:
            self._file = file.name
            for statement in file.body:
                self._define(statement)
        for file in self._files:
            self._file = file.name
            for statement in file.body:
                if isinstance(statement, Block) and statement.name in COMPONENTS:
                    self._block(statement, COMPONENTS[statement.name])
        for name, (where, block) in self._defined.items():
            if COMPONENTS[block.name].exports and name not in self._used:
                self._problems.append(AlloyError(where, block.line, f"{name} is used by nothing"))
        return self._problems

    def _say(self, line: int, message: str) -> None:
        self._problems.append(AlloyError(self._file, line, message))

    def _define(self, statement: Attribute | Block) -> None:
        if isinstance(statement, Attribute):
            self._say(statement.line, f"{statement.name} stands outside any component")
            return
        spec = COMPONENTS.get(statement.name)
        if spec is None:
            self._say(statement.line, f"{statement.name} is no component known of Alloy {VERSION}")
            return
        if spec.labelled != bool(statement.label):
            must = "needs a label" if spec.labelled else "takes no label"
            self._say(statement.line, f"{statement.name} {must}")
            return
        name = f"{statement.name}.{statement.label}" if spec.labelled else statement.name
        if name in self._defined:
            file, first = self._defined[name]
            self._say(statement.line, f"{name} is already defined at {file}:{first.line}")
            return
        self._defined[name] = (self._file, statement)

    def _block(self, block: Block, spec: BlockSpec) -> None:
        seen: set[str] = set()
        for statement in block.body:
            name = statement.name
            if isinstance(statement, Attribute):
                self._attribute(block, statement, spec)
                repeated = name in seen
            else:
                inner = spec.blocks.get(name)
                repeated = name in seen and inner is not None and not inner.many
                self._inner(block, statement, inner, spec)
            if repeated:
                self._say(statement.line, f"{name} stands twice in {block.name}")
            seen.add(name)
        needed = [name for name, each in spec.attributes.items() if each.required]
        needed += [name for name, each in spec.blocks.items() if each.required]
        for name in needed:
            if name not in seen:
                self._say(block.line, f"{block.name} needs {name}")

    def _inner(self, outer: Block, block: Block, spec: BlockSpec | None, around: BlockSpec) -> None:
        if spec is None:
            what = "is an attribute of" if block.name in around.attributes else "is no block of"
            self._say(block.line, f"{block.name} {what} {outer.name}")
            return
        if block.label:
            self._say(block.line, f"{block.name} takes no label")
        self._block(block, spec)

    def _attribute(self, block: Block, attribute: Attribute, spec: BlockSpec) -> None:
        known: AttributeSpec | None = spec.attributes.get(attribute.name)
        if known is None:
            what = "is a block of" if attribute.name in spec.blocks else "is no attribute of"
            self._say(attribute.line, f"{attribute.name} {what} {block.name}")
            self._value(attribute.value, "any", attribute.name)
        else:
            self._value(attribute.value, known.type, attribute.name)

    def _value(self, value: Expression, type: str, name: str) -> None:
        """Whether a value may stand where `type` is wanted, and all that is in it."""
        match value:
            case Literal():
                if not _fits(value.value, type):
                    self._say(value.line, f"{name} is {_article(type)}, not {_written(value)}")
            case Array():
                inner = _inside(type, "list")
                if inner is None:
                    self._say(value.line, f"{name} is {_article(type)}, not a list")
                for element in value.elements:
                    self._value(element, inner or "any", name)
            case Object():
                inner = _inside(type, "map")
                if inner is None:
                    self._say(value.line, f"{name} is {_article(type)}, not a map")
                self._fields(value, type, name)
                for each in value.fields:
                    self._value(each.value, inner or "any", f"{name}.{each.name}")
            case Reference():
                self._is_a(self._reference(value), type, value, name)
            case Call():
                self._call(value, type, name)
            case Operation():
                for operand in value.operands:
                    self._value(operand, "any", name)

    def _fields(self, value: Object, type: str, name: str) -> None:
        names = [each.name for each in value.fields]
        for each in value.fields:
            if names.count(each.name) > 1:
                self._say(each.line, f"{each.name} stands twice in {name}")
            if type == "labels" and not _fits(each.name, "label"):
                self._say(each.line, f'{name} is by label, and "{each.name}" is none')
        needed = type.partition("target:")[2]
        if needed and needed not in names:
            self._say(value.line, f"an element of {name} needs {needed}")

    def _call(self, call: Call, type: str, name: str) -> None:
        if not isinstance(call.function, Reference):
            self._say(call.line, f"{name} calls what is no function")
            return
        function = call.function.name
        if function == "coalesce":
            for argument in call.arguments:
                self._value(argument, type, name)
            return
        if function not in FUNCTIONS:
            self._say(call.line, f"{function} is no function known of Alloy {VERSION}")
            return
        self._is_a(FUNCTIONS[function], type, call, name)
        for argument in call.arguments:
            self._value(argument, "string" if function == "sys.env" else "any", function)

    def _is_a(self, given: str, type: str, value: Expression, name: str) -> None:
        text = given == "string" and (type in ("secret", "regex", *_FORMATS) or "|" in type)
        part = given.startswith("list") and type.startswith(("list(target:", f"{given}("))
        if not (given == type or "any" in (given, type) or text or part):
            self._say(value.line, f"{name} is {_article(type)}, not {_article(given)}")

    def _reference(self, reference: Reference) -> str:
        """The type of what a name stands for; `any` where it stands for nothing, which is said."""
        if reference.name in CONSTANTS:
            return "string"
        parts = reference.name.split(".")
        for length in range(1, len(parts) - 1):
            component = ".".join(parts[:length])
            spec = COMPONENTS.get(component)
            if spec is None:
                continue
            defined = ".".join(parts[: length + 1])
            export = ".".join(parts[length + 1 :])
            if defined not in self._defined:
                self._say(reference.line, f"{reference.name}: there is no {defined}")
            elif export not in spec.exports:
                self._say(reference.line, f"{component} exports no {export}")
            else:
                self._used.add(defined)
                return spec.exports[export]
            return "any"
        self._say(reference.line, f"{reference.name} stands for nothing")
        return "any"


def _inside(type: str, kind: str) -> str | None:
    """The type of the elements of a `list(…)` or `map(…)`; None where `type` is no such."""
    if type == "any":
        return "any"
    if kind == "map" and (type == "labels" or type.startswith("target:")):
        return "string"
    return type[len(kind) + 1 : -1] if type.startswith(f"{kind}(") else None


def _fits(value: str | int | float | bool | None, type: str) -> bool:
    if type == "any":
        return True
    if value is None:
        return type == "secret"
    if isinstance(value, bool) or type == "bool":
        return isinstance(value, bool) and type == "bool"
    if not isinstance(value, str):
        return type == "number" or (type == "int" and isinstance(value, int))
    if type in _FORMATS:
        return re.fullmatch(_FORMATS[type], value) is not None
    if type == "regex":
        return _compiles(value)
    return value in type.split("|") if "|" in type else type in ("string", "secret")


def _compiles(pattern: str) -> bool:
    """By Python's rules, which differ from those of RE2 in what only one of them has."""
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _article(type: str) -> str:
    if "|" in type:
        return f"one of {type.replace('|', ', ')}"
    return f"{'an' if type[0] in 'aeio' else 'a'} {type}"


def _written(literal: Literal) -> str:
    if isinstance(literal.value, str):
        return f'"{literal.value}"'
    if literal.value is None:
        return "null"
    return str(literal.value).lower()


def environment(files: Iterable[File]) -> frozenset[str]:
    """The names of the variables that the files read with `sys.env`."""
    return frozenset(_environment([file.body for file in files]))


def _environment(value: object) -> Iterator[str]:
    match value:
        case Call(function=Reference(name="sys.env"), arguments=(Literal(value=str(name)),)):
            yield name
        case Call(arguments=inner) | Array(elements=inner) | Operation(operands=inner):
            yield from _environment(inner)
        case Object(fields=fields) | Block(body=fields):
            yield from _environment(fields)
        case Attribute(value=inner):
            yield from _environment(inner)
        case tuple() | list():
            for each in value:
                yield from _environment(each)
