"""The parts of the tables and panels that the commands print.

All text that comes from a model, a path or a traceback goes through `plain`: otherwise rich would
interpret `[red]` in it as markup, and a terminal would execute an escape sequence. Nothing here
expands to the width of the console, so that `console()` can give piped output an unlimited width:
a text that is cut off or folded cannot be searched for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from typing import IO, Any, cast

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from compilewatch.report import wording
from compilewatch.report.wording import ResultGroup

UNLIMITED_WIDTH = 10_000

STYLES: dict[ResultGroup, str] = {
    ResultGroup.PASS: "green",
    ResultGroup.GRAPH_BREAK: "yellow",
    ResultGroup.MISMATCH: "magenta",
    ResultGroup.COMPILE_ERROR: "red",
    ResultGroup.NO_VERDICT: "bright_red",
    ResultGroup.NOT_RUN: "dim",
}


class Indented:
    """A renderable, three columns to the right.

    Unlike rich's Padding it adds nothing at the end of a line: in a pipe that would be thousands of
    blanks.
    """

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        inner = options.update(width=max(options.max_width - 3, 1))
        for line in console.render_lines(self._renderable, inner, pad=False):
            yield Segment("   ")
            yield from line
            yield Segment.line()


def console(file: IO[str] | None = None, *, stderr: bool = False) -> Console:
    """The console of the commands.

    It prints in colour on a terminal only (and not with NO_COLOR). In a pipe it is as wide as
    needed, and lines have no trailing spaces.
    """
    printer = Console(file=file, stderr=stderr, highlight=False)
    if not printer.is_terminal:
        printer.width = UNLIMITED_WIDTH
        # As in Rich, the stream of the moment: a caller may replace sys.stdout.
        printer.file = cast(
            IO[str], _Unpadded(lambda: file or (sys.stderr if stderr else sys.stdout))
        )
    return printer


class _Unpadded:
    """A text file without the spaces that Rich appends to fill a table's last column."""

    def __init__(self, file: Callable[[], IO[str]]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file().write(re.sub(r" +$", "", text, flags=re.MULTILINE))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file(), name)


def plain_table(*headings: str, gap: int = 1) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, gap, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def spaced(parts: Iterable[RenderableType]) -> RenderableType:
    """The parts with an empty line after each but the last."""
    separated = [piece for part in parts for piece in (part, Text())]
    return Group(*separated[:-1])


def block(text: str, style: str = "") -> RenderableType:
    return Indented(plain(text.strip("\n"), style))


def code(source: str, language: str = "python") -> Text:
    """Code as it can be pasted: from the first column, and no line is cut or broken.

    What prints it, prints it with `crop=False`.
    """
    shown = Syntax("", language, theme="ansi_dark", background_color="default")
    text = shown.highlight(wording.printable(source.rstrip()))
    text.rstrip()
    text.no_wrap, text.overflow = True, "ignore"
    return text


def plain(text: str, style: str = "") -> Text:
    return Text(wording.printable(text.expandtabs(4)), style=style, overflow="fold")
