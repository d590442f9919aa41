"""What Java and Groovy sources declare for Jenkins: classes, what binds data to them, symbols.

This reads declarations, not programs: comments and literals are blanked, the blocks of classes are
matched by their braces, and a member belongs to the innermost class around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r'(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<text>"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])*')",
    re.DOTALL,
)
_CLASS = re.compile(r"(?<![\w.])(?:class|interface|enum)\s+([A-Z]\w*)([^{;()]*)\{")
_SYMBOL = re.compile(r"@Symbol\s*\(\s*(?:value\s*=\s*)?(\{[^}]*\}|\"[^\"]*\")\s*\)")
_ANNOTATION = r"@[\w.]+(?:\((?:[^()]|\([^()]*\))*\))?"
_MEMBER = re.compile(
    rf"(?:\s|{_ANNOTATION})*((?:[\w.]+\s*(?:<[^();={{}}]*>)?(?:\[\])?\s+)+)(\w+)\s*([(;=])"
)
_SETTER = re.compile(r"\bpublic\s+(?:[\w.]+\s+)*?void\s+set([A-Z]\w*)\s*\(")
_GETTER = re.compile(
    r"\bpublic\s+(?:@\w+\s+)*((?:[\w.]+(?:<[^();={}]*>)?(?:\[\])?\s+)+)(get|is)([A-Z]\w*)\s*\(\s*\)"
)


@dataclass
class Class:
    """A class of the sources: its name with those around it, what it extends, and what it declares.

    `needs` are the parameters of its data-bound constructor, `takes` its data-bound setters, `sets`
    its public setters, all with the type of the value; `gets` its public getters. `body` has no
    comments, `masked` no literals either.
    """

    name: str
    parents: tuple[str, ...]
    header: str
    body: str
    masked: str
    annotations: str = ""
    symbols: tuple[str, ...] = ()
    needs: dict[str, str] | None = None
    takes: dict[str, str] = field(default_factory=dict)
    sets: dict[str, str] = field(default_factory=dict)
    gets: dict[str, str] = field(default_factory=dict)

    @property
    def simple(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def outer(self) -> str:
        return self.name.rpartition(".")[0]


def classes(source: str) -> Iterator[Class]:
    """The classes of a file with their own members, without those of classes inside them."""
    text, masked = _blanked(source)
    spans = [(m, _closing(masked, m.end() - 1)) for m in _CLASS.finditer(masked)]
    marks = [(m.start(), tuple(re.findall(r'"([^"]*)"', m[1]))) for m in _SYMBOL.finditer(text)]
    for head, end in spans:
        around = [m[1] for m, last in spans if m.start() < head.start() and end <= last]
        inside = [(m.start(), last) for m, last in spans if head.end() < m.start() and last < end]
        before = max((m.end() for m, _ in spans if m.end() <= head.start()), default=0)
        start = max(before, masked.rfind(";", 0, head.start()))
        own = _without(masked, head.end(), end, inside)
        made = Class(
            name=".".join([*around, head[1]]),
            parents=tuple(_parents(head[2])),
            header=head[2],
            body=_without(text, head.end(), end, inside),
            masked=own,
            annotations=text[start : head.start()],
            symbols=next((v for at, v in reversed(marks) if start <= at < head.start()), ()),
        )
        _read_members(made)
        yield made


def _blanked(source: str) -> tuple[str, str]:
    """The source without comments, and the same without literals: positions are unchanged."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    text = _TOKEN.sub(lambda m: blank(m) if m["comment"] else m[0], source)
    masked = _TOKEN.sub(lambda m: f'"{blank(m)[2:]}"' if len(m[0]) > 1 else " ", text)
    return text, masked


def _closing(masked: str, opening: int) -> int:
    depth = 0
    for found in re.finditer(r"[{}]", masked[opening:]):
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return opening + found.start()
    return len(masked)


def _without(text: str, start: int, end: int, inside: list[tuple[int, int]]) -> str:
    kept, at = [], start
    for first, last in inside:
        if first >= at:
            kept.append(text[at:first])
            at = last + 1
    return "".join([*kept, text[at:end]])


def _parents(header: str) -> Iterator[str]:
    plain = header
    while (shorter := re.sub(r"<[^<>]*>", "", plain)) != plain:
        plain = shorter
    for names in re.findall(
        r"(?:extends|implements)\s+([\w.,\s]+?)(?=extends|implements|$)", plain
    ):
        for name in names.split(","):
            if name.strip():
                yield name.strip().rpartition(".")[2] if name.strip()[0].islower() else name.strip()


def _read_members(made: Class) -> None:
    masked = made.masked
    for found in re.finditer(r"@DataBoundConstructor\b", masked):
        opening = re.compile(rf"\b{made.simple}\s*\(").search(masked, found.end())
        if opening:
            made.needs = dict(_parameters(masked, opening.end() - 1))
    for found in re.finditer(r"@DataBoundSetter\b", masked):
        member = _MEMBER.match(masked, found.end())
        if member is None:
            continue
        if member[3] == "(":
            for _, kind in _parameters(masked, member.end() - 1):
                made.takes[_lower(member[2].removeprefix("set"))] = kind
        else:
            made.takes[member[2]] = element(member[1])
    for found in _SETTER.finditer(masked):
        given = list(_parameters(masked, found.end() - 1))
        if len(given) == 1:
            made.sets[_lower(found[1])] = given[0][1]
    for found in _GETTER.finditer(masked):
        made.gets[_lower(found[3])] = " ".join(found[1].split())


def _parameters(masked: str, opening: int) -> Iterator[tuple[str, str]]:
    """The name and type of each parameter of the list that begins at `opening`."""
    depth, at, parts = 0, opening + 1, []
    for position in range(opening, len(masked)):
        char = masked[position]
        depth += {"(": 1, "<": 1, ")": -1, ">": -1}.get(char, 0)
        if depth == 0 or (char == "," and depth == 1):
            parts.append(masked[at:position])
            at = position + 1
        if depth == 0:
            break
    for part in parts:
        words = re.sub(rf"{_ANNOTATION}|\bfinal\b", " ", part).split()
        if len(words) > 1:
            yield words[-1], element(" ".join(words[:-1]))


def element(kind: str) -> str:
    """The name of the type that a value or an entry of it has: `List<NodeProperty<?>>`."""
    plain = re.sub(r"\b(?:private|public|protected|final|static|volatile|transient)\b", "", kind)
    inner = re.match(
        r"\s*(?:[\w.]*(?:List|Collection|Set|Iterable))\s*<\s*(?:\?\s*(?:extends|super)\s+)?([\w.]+)",
        plain,
    )
    name = inner[1] if inner else re.sub(r"<.*>|\[\]|\s", "", plain)
    return name.rpartition(".")[2] if name[:1].islower() and "." in name else name


def _lower(name: str) -> str:
    return name[:1].lower() + name[1:]
