"""One result in the terminal, in full."""

import importlib.util
import io
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, cast

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from compilewatch import errors, records
from compilewatch.analysis.summary import matrix_rows
from compilewatch.contract.targets import in_default_environment, target_label
from compilewatch.report import wording
from compilewatch.report.sections import Section, details
from compilewatch.report.wording import ResultGroup, outcome, plural

UNLIMITED_WIDTH = 10_000

COLOURS = ("green", "yellow", "magenta", "red", "bright_red", "dim", "cyan", "blue", "dim")
STYLES = dict(zip(wording.OUTCOME_LABELS, COLOURS, strict=True))


class Indented(Padding):
    """A renderable, three columns to the right, and no wider than it needs."""

    def __init__(self, renderable: RenderableType) -> None:
        super().__init__(renderable, (0, 0, 0, 3), expand=False)


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
    """A text file without the spaces that Rich appends to fill a table's last column, or a line."""

    def __init__(self, file: Callable[[], IO[str]]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file().write(_unpadded(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file(), name)


def _unpadded(text: str) -> str:
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def plain_table(*headings: str, gap: int = 1) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, gap, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


Cell = str | tuple[str, str] | RenderableType
"""A text, a text with its style, or anything that rich prints."""


def table(
    headings: Sequence[str], rows: Iterable[Sequence[Cell]], *, more: int = 0, gap: int = 1
) -> Table:
    """A table of rows, and a last line if `more` of them are left out.

    A heading that begins with `>` is that of numbers, which are aligned at the right.
    """
    filled = plain_table(*(heading.removeprefix(">") for heading in headings), gap=gap)
    for column, heading in zip(filled.columns, headings, strict=True):
        column.justify = "right" if heading.startswith(">") else "left"
    for row in rows:
        filled.add_row(*map(_cell, row))
    if more > 0:
        filled.add_row(plain(f"{more:,} more in the report", "dim"))
    return filled


def _cell(cell: Cell) -> RenderableType:
    if isinstance(cell, str):
        return plain(cell)
    return plain(*cell) if isinstance(cell, tuple) else cell


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


ERROR_LINES_SHOWN = 12

DUMP = ("Fatal Python error", "Current thread")
"""The beginnings of the first line of a stack that `faulthandler` prints."""


def model_panel(result: records.Result, *, verbose: bool = False) -> RenderableType:
    """One result in full.

    With `verbose`, tracebacks are not shortened, and those of compilewatch's own errors are shown.
    """
    parts: list[RenderableType] = [_title(result), _figures(result)]
    if result.detail:
        parts.append(plain(result.detail))
    if note := wording.fullgraph_note(result):
        parts.append(plain(note, "dim"))
    if note := wording.second_call_note(result):
        parts.append(plain(note, "yellow"))
    if result.expectation:
        parts.append(plain(f"expected: {result.expectation}", "dim"))
    rejected = result.fullgraph is not None and not result.fullgraph.accepted
    if rejected and not result.breaks and result.fullgraph and result.fullgraph.reason:
        parts += [plain("fullgraph=True rejects it:", "bold"), block(result.fullgraph.reason)]
    for number, graph_break in enumerate(result.breaks, start=1):
        parts += [Text(), _break(number, graph_break)]
    parts += _error(result, verbose)
    for section in details(result):
        parts += _section(section)
    parts += _how(result)
    return Group(*parts)


def check_text(result: records.Result, left: Sequence[str] = ()) -> str:
    """A result as `explain` prints it, but as text, with what a check left in the process."""
    return as_text(model_panel(result), *map(plain, left))


def as_text(*parts: RenderableType) -> str:
    """The parts as text that is as wide as the terminal, without colours."""
    width = shutil.get_terminal_size(fallback=(100, 24)).columns
    console = Console(width=width, no_color=True, highlight=False, file=io.StringIO())
    with console.capture() as captured:
        for part in parts:
            console.print(part, crop=False)
    return _unpadded(captured.get()).rstrip()


def _section(section: Section) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(), plain(section.title, "bold")]
    # These are lines and not a table, which would pad every line to the longest message in a pipe.
    width = max((len(name) for name, _ in section.facts), default=0)
    parts += [Indented(plain(f"{name:<{width}}  {value}")) for name, value in section.facts]
    for listing in section.listings:
        headings, *rows = listing.rows
        note = [plain(listing.note, "dim")] if listing.note else []
        heading = plain(listing.title, "bold")
        parts.append(Indented(Group(heading, *note, table(headings, rows))))
    return parts


def _title(result: records.Result) -> Text:
    model = result.request.model
    line = plain(model.name, "bold")
    line.append_text(plain(f"  {target_label(result.request.target)}  "))
    line.append_text(plain(wording.status_words(result), f"bold {STYLES[outcome(result)]}"))
    about = (model.family, model.task, wording.part_words(model), wording.quantization_words(model))
    if known := [text for text in about if text and text != "unknown"]:
        line.append_text(plain(f"  ({', '.join(known)})", "dim"))
    return line


def _figures(result: records.Result) -> Text:
    figures = [captured] if (captured := wording.captured_words(result)) else []
    if result.graph_breaks is not None:
        distinct = f" ({result.distinct_breaks} distinct)" if result.distinct_breaks else ""
        figures.append(plural(result.graph_breaks, "graph break") + distinct)
    if result.graphs is not None:
        figures.append(plural(result.graphs, "graph"))
    figures += [wording.tensor_words(result), f"{result.depth.value} depth"]
    target = result.request.target
    if target.environment != records.DEFAULT_ENVIRONMENT and in_default_environment(target):
        figures.append(f"environment {target.environment}")  # no part of the label
    for number, noun in ((result.ops, "op"), (result.guards, "guard")):
        if number is not None:
            figures.append(plural(number, noun))
    if result.fullgraph is not None:
        accepted = "accepted" if result.fullgraph.accepted else "rejected"
        how = "derived from the capture" if result.fullgraph.derived else "compiled to check"
        figures.append(f"fullgraph=True {accepted} ({how})")
    if result.parameters is not None:
        figures.append(f"{wording.quantity(result.parameters)} parameters")
    if result.peak_memory_bytes is not None:
        figures.append(wording.memory(result.peak_memory_bytes))
    if result.durations:
        figures.append(wording.seconds(records.spent(result)))
    if result.reused_from:
        figures.append(f"reused from run {result.reused_from}")
    return plain(" · ".join(figures), "dim")


def _break(number: int, graph_break: records.GraphBreak) -> RenderableType:
    heading = plain(f"{number}. {records.reason_label(graph_break)}", "bold yellow")
    times = graph_break.occurrences
    heading.append_text(plain("  once" if times == 1 else f"  {times} times", "dim"))
    inside: list[RenderableType] = [
        plain(f"{graph_break.file}:{graph_break.line} in {graph_break.function}")
    ]
    inside += _source(records.source_lines(graph_break), graph_break.line)
    inside.append(plain(graph_break.reason.strip()))
    # The text of torch often contains its hints and the link already.
    reason = graph_break.reason
    hints = [hint.strip() for hint in graph_break.hints if hint.strip() not in reason]
    inside += [plain(f"hint: {hint}", "green") for hint in hints]
    page = wording.registry_page(graph_break.code)
    if page is not None and page not in reason:
        inside.append(plain(page, "cyan"))
    return Group(heading, Indented(Group(*inside)))


def _source(lines: Sequence[tuple[int, str]], marked: int) -> list[RenderableType]:
    width = len(str(lines[-1][0])) if lines else 0
    shown: list[RenderableType] = []
    for number, code in lines:
        mark = ">" if number == marked else " "
        line = plain(
            f"{mark} {number:>{width}} | {code}".rstrip(), "bold" if mark == ">" else "dim"
        )
        if number != marked:
            line.no_wrap, line.overflow = True, "ellipsis"
        shown.append(line)
    return shown


def _error(result: records.Result, verbose: bool) -> list[RenderableType]:
    error = result.error
    if error is None:
        return []
    trace = (error.tail or error.head).rstrip().splitlines()
    if hasattr(errors, error.type):  # compilewatch's own error: the detail already has its message
        return [Text(), block("\n".join(trace), "dim")] if verbose else []
    parts: list[RenderableType] = [Text(), plain(f"{error.type} ({error.code})", "bold red")]
    if not result.detail.strip().endswith(error.message.strip()):
        parts.append(block(error.message))
    if error.file and error.line:
        inside = f" in {error.function}" if error.function else ""
        parts.append(plain(f"{error.file}:{error.line}{inside}"))
        folders = getattr(result.request.model.build, "python_path", ())
        parts += _source(source_excerpt(error.file, error.line, folders=folders), error.line)
    if not verbose:
        # The stack of a signal has its innermost frame first, a traceback has it last.
        dump = next((n for n, line in enumerate(trace) if line.startswith(DUMP)), None)
        last = len(trace) if dump is None else dump + ERROR_LINES_SHOWN
        trace = trace[max(0, last - ERROR_LINES_SHOWN) : last]
    if trace:
        parts.append(block("\n".join(trace), "dim"))
    return parts


def _how(result: records.Result) -> list[RenderableType]:
    parts: list[RenderableType] = [Text()]
    for tensor in result.inputs:
        shape = None if tensor.shape is None else f"{list(tensor.shape)} {tensor.dtype}"
        parts.append(plain(f"input {tensor.name}: {shape or tensor.value}", "dim"))
    for attempt in result.attempts:
        words = wording.attempt_words(attempt)
        parts.append(plain(f"earlier attempt with {attempt.tier.value} tensors: {words}", "dim"))
    parts += [plain(f"artifact {path}", "dim") for path in result.artifacts]
    if command := wording.decompressing(result):
        parts.append(plain(command, "cyan"))
    if not isinstance(result.request.model.build, records.CallerBuild):  # no command can build it
        parts.append(plain(wording.repeat_commands(result.request)[0], "cyan"))
    return parts


def row_panel(results: Sequence[records.Result]) -> RenderableType:
    """The targets of one model in their order: the first that fails, and contradicting results."""
    table = plain_table("Target", "Mode", "Result", "Phase", "Why")
    disagreements: list[RenderableType] = []
    for row in matrix_rows(results):
        for cell in row.cells:
            result = cell.result
            style = STYLES[ResultGroup.PASS if result is None else outcome(result)]
            first = "  <- fails first" if cell is row.first_failing else ""
            table.add_row(
                plain(cell.layer, "bold" if first else ""),
                plain(row.way.label),
                plain(wording.cell_words(cell) + first, style),
                plain(result.phase.value if result is not None else ""),
                plain(", ".join(wording.why(result)) if result is not None else ""),
            )
        disagreements += [plain(f"{row.way.label}: {line}", "yellow") for line in row.disagreements]
    return Group(table, *disagreements, Text())


def source_excerpt(
    file: str, line: int, around: int = 2, *, folders: Sequence[str] = ()
) -> tuple[tuple[int, str], ...]:
    """The lines around `file`:`line`, where `file` is relative to its package's parent folder.

    That folder is one of `folders`; otherwise the package is located without importing it. The
    result is empty if the package is not installed for this interpreter or has no such file or
    line.
    """
    own = (path for path in (Path(folder, file) for folder in folders) if path.is_file())
    path = next(own, None) or installed_file(file)
    if path is None:
        return ()
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    if not 1 <= line <= len(lines):
        return ()
    first, last = max(1, line - around), min(len(lines), line + around)
    return tuple((n, lines[n - 1]) for n in range(first, last + 1))


def installed_file(file: str) -> Path | None:
    """Return where a file lies whose path begins with an installed package; nothing is imported."""
    package, *rest = Path(file).parts or ("",)
    name = package.removesuffix(".py")
    if not name.isidentifier():
        # A dotted name is rejected too: locating a submodule would import its parents.
        return None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin and package.endswith(".py") else None
    folders = [Path(folder, *rest) for folder in spec.submodule_search_locations or ()]
    return next((path for path in folders if path.is_file()), None)
