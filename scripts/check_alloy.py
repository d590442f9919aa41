"""Finds in alloy/ what `alloy validate` would, as far as it can be found without an Alloy.

Unbalanced blocks, unknown components and functions, references that resolve to nothing.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

EXPORTS: dict[str, set[str]] = {
    "loki.process": {"receiver"},
    "loki.source.api": set(),
    "loki.source.file": set(),
    "loki.write": {"receiver"},
    "prometheus.relabel": {"receiver", "rules"},
    "prometheus.remote_write": {"receiver"},
    "prometheus.scrape": set(),
}
"""The components that are used here, and what each exports."""
FUNCTIONS = {"coalesce", "sys.env"}
TOKEN = re.compile(
    r'\s*(?://[^\n]*\s*)*(?:(?P<string>"(?:[^"\\\n]|\\.)*"|`[^`]*`)|(?P<number>\d[\d.]*)'
    r"|(?P<name>[A-Za-z_][\w.]*)|(?P<sign>[{}()\[\],=])|(?P<end>\Z)|(?P<other>.))"
)
WORDS = {"true": True, "false": False, "null": None}


class AlloyError(Exception):
    """A file cannot be read; `str()` is `file:line: message`."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A reference to an export of a component or, with `arguments`, the call of a function."""

    name: str
    where: str
    arguments: list[Value] | None = None


Value: TypeAlias = "str | float | bool | Call | list[Value] | dict[str, Value] | None"


@dataclass(frozen=True, kw_only=True)
class Block:
    """`name "label" { … }`; a file is a block without a name, which contains all `calls`."""

    name: str = ""
    label: str = ""
    where: str = ""
    attributes: dict[str, Value] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


class _Reader:
    """`wanted` and `end` are kinds of tokens, or their texts."""

    def __init__(self, file: str, text: str) -> None:
        self.calls: list[Call] = []
        self._tokens: list[tuple[str, str, str]] = []  # kind, text and place, the next one last
        for tokens in TOKEN.finditer(text):
            kind = str(tokens.lastgroup)
            where = f"{file}:{text.count(chr(10), 0, tokens.start(kind)) + 1}"
            self._tokens.insert(0, (kind, tokens[kind], where))

    def sees(self, *token: str) -> bool:
        return not {*self._tokens[-1][:2]}.isdisjoint(token)

    def take(self, *token: str) -> str:
        if not self.sees(*token):
            _, got, where = self._tokens[-1]
            raise AlloyError(f"{where}: expected {' or '.join(token)}, got {got or 'the end'}")
        return self._tokens.pop()[1]

    def skip(self, text: str) -> bool:
        return self.sees(text) and bool(self.take(text))

    def body(self, block: Block, end: str) -> Block:
        while not self.sees(end):
            where, name = self._tokens[-1][2], self.take("name", end)
            if self.skip("="):
                block.attributes[name] = self.value()
                continue
            label = self.take("string").strip('"') if self.sees("string") else ""
            self.take("{")
            block.blocks.append(self.body(Block(name=name, label=label, where=where), "}"))
        self.take(end)
        return block

    def value(self) -> Value:
        where, text = self._tokens[-1][2], self.take("name", "string", "number", "[", "{")
        if text in "[{":
            items = self.items({"[": "]", "{": "}"}[text])
            return dict(items) if text == "{" else [value for _, value in items]
        if text[0] in '"`' or text[0].isdigit():
            return text[1:-1] if text[0] == "`" else str(json.loads(text))
        if text in WORDS:
            return WORDS[text]
        arguments = [value for _, value in self.items(")")] if self.skip("(") else None
        self.calls.append(Call(name=text, where=where, arguments=arguments))
        return self.calls[-1]

    def items(self, end: str) -> Iterator[tuple[str, Value]]:
        while not self.skip(end):
            key = self.take("name", "string").strip('"') if end == "}" else ""
            if end == "}":
                self.take("=")
            yield key, self.value()
            if not self.sees(end):
                self.take(",", end)


def parse(file: str, text: str) -> Block:
    """The tree of a file. Raises AlloyError where it cannot be read."""
    reader = _Reader(file, text)
    return reader.body(Block(where=file, calls=reader.calls), "end")


def check(*files: Block) -> Iterator[str]:
    """What is wrong with files that Alloy reads as one."""
    known = {f"{block.name}.{block.label}": block for file in files for block in file.blocks}
    for block in known.values():
        if block.name not in EXPORTS or not block.label:
            yield f"{block.where}: no such component: {block.name} {block.label}".rstrip()
    for call in (call for file in files for call in file.calls):
        component, _, export = call.name.rpartition(".")
        exports = EXPORTS.get(known[component].name, ()) if component in known else ()
        if call.name not in FUNCTIONS if call.arguments is not None else export not in exports:
            yield f"{call.where}: {call.name} resolves to nothing"


def main(folder: Path) -> str:
    """What is wrong in the folder, with each of its sinks."""
    try:
        paths = [folder / "config.alloy", *sorted(folder.glob("sinks/*.alloy"))]
        config, *sinks = (parse(str(path), path.read_text()) for path in paths)
    except AlloyError as error:
        return str(error)
    return "\n".join(dict.fromkeys(wrong for sink in sinks for wrong in check(config, sink)))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "alloy")) or 0)
