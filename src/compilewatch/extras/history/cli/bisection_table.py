"""A search over releases: a line for each evaluation, and the table at the end."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from compilewatch.extras.history.bisect import FileChange
from compilewatch.extras.history.bisection import Bisection, Break, Evaluated, Kind
from compilewatch.records.views import Earlier
from compilewatch.report.terminal.pieces import STYLES, Indented, plain, plain_table, spaced
from compilewatch.report.wording import OUTCOME_LABELS, ResultGroup, outcome, plural

DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def evaluated_line(package: str, found: Evaluated, number: int, limit: int) -> Text:
    """`2 of at most 7: transformers 5.4.0  graph break: GB0170 …  (evaluated in …)`."""
    line = plain(f"{number} of at most {limit}: {package} {found.release}  ")
    return line.append_text(_result(found)).append(f"  ({_origin(found)})", style="dim")


def bisection_table(
    model: str, package: str, other: str, found: Bisection, changes: Iterable[FileChange]
) -> RenderableType:
    """Every release that was evaluated, what changed between which two, and the changed lines."""
    table = plain_table("Release", "Result", "Environment", "Run", gap=2)
    for each in found.evaluated:
        style = "bold" if each.release in (found.last, found.first) else ""
        table.add_row(
            plain(each.release, style),
            _result(each),
            plain(each.environment),
            plain(each.run or ""),
        )
    parts: list[RenderableType] = [table, plain(_conclusion(model, package, other, found))]
    changed = list(changes)
    if found.first is not None and not changed:
        parts.append(plain("The model's file and those with graph breaks are the same in both."))
    for change in changed:
        parts += [plain(f"{change.file}", "bold"), _diff(change)]
    return spaced(parts)


def _conclusion(model: str, package: str, other: str, found: Bisection) -> str:
    fixed = "transformers" if package == "torch" else "torch"
    count = f"{plural(len(found.evaluated), 'evaluation')} of {len(found.releases)} releases"
    ends = found.evaluated[0], found.evaluated[-1]
    unknown = [each.release for each in ends if each.kind is Kind.UNDETERMINED]
    if unknown:
        return f"Not determined: nothing is known of {package} {' and '.join(unknown)}. {count}."
    if found.last is None or found.first is None:
        between = f"between {package} {ends[0].release} and {ends[1].release}"
        return (
            f"{model} has the same result at both ends, {between}, with {fixed} {other}. {count}."
        )
    said = f"{model} changed between {package} {found.last} and {found.first}, with {fixed} {other}"
    lines = [f"{said}. {count}."]
    before, after = found.of(found.last), found.of(found.first)
    lines += [f"  only in {found.last}: {_place(each)}" for each in after.lacks(before)]
    lines += [f"  only in {found.first}: {_place(each)}" for each in before.lacks(after)]
    if found.between:
        lines.append(f"Nothing is known of the releases between: {', '.join(found.between)}.")
    if found.changes_again:
        lines.append(
            f"The result of {ends[1].release} is another one still: search on with "
            f"--good {found.first} --bad {ends[1].release}."
        )
    return "\n".join(lines)


def _place(found: Break) -> str:
    return f"{found.reason} at {found.file}:{found.line} in {found.function}"


def _result(found: Evaluated) -> Text:
    if found.kind is Kind.ABSENT:
        return plain("no such model", "dim")
    if found.status is None or found.phase is None:
        return plain(f"not known: {found.detail}", STYLES[ResultGroup.NO_VERDICT])
    found_outcome = outcome(Earlier("", found.status, found.phase))
    why = "; ".join(sorted({each.reason for each in found.breaks})) or found.code
    if found_outcome is ResultGroup.PASS:
        why = "" if found.fullgraph is not False else "fullgraph=True rejected"
    elif found_outcome in (ResultGroup.NO_VERDICT, ResultGroup.NOT_RUN):
        why = f"{found.status.value} in {found.phase.value}: {found.detail}"
    label = OUTCOME_LABELS[found_outcome] + (f": {why}" if why else "")
    return plain(label, STYLES[found_outcome])


def _origin(found: Evaluated) -> str:
    if found.run is None:
        return "not evaluated"
    return f"from run {found.run}" if found.reused else f"evaluated in {found.environment}"


def _diff(change: FileChange) -> RenderableType:
    lines = (plain(line, DIFF_STYLES.get(line[:1], "")) for line in change.lines)
    return Indented(Text("\n").join(lines))
