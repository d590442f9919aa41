"""A fix as text: what goes, the code to paste, the verification, and what was tried."""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from compilewatch.extras.fixes.records import (
    RECOMPILED,
    Fix,
    FixCost,
    FixKind,
    FixStatus,
    Verification,
)
from compilewatch.records import reason_title
from compilewatch.report.terminal import Indented, code, plain
from compilewatch.report.wording import milliseconds

_WORDS = {
    FixStatus.VERIFIED: ("verified", "green"),
    FixStatus.IMPROVES: ("improves only", "yellow"),
    FixStatus.CAPTURED: ("captured, not verified", "yellow"),
    FixStatus.NOTHING: ("no fix", "red"),
    FixStatus.NO_BREAK: ("nothing to fix", "green"),
    FixStatus.NO_VERDICT: ("no verdict", "red"),
    FixStatus.NOT_SEARCHED: ("not searched", "dim"),
}

_COUNTED = {
    "breaks": "Dynamo's reports of graph breaks",  # of one break there may be several
    "graphs": "graphs",
    "compilations": "compilations",
}


def status_text(status: FixStatus) -> Text:
    return plain(*_WORDS[status])


def fix_panel(fix: Fix, *, verbose: bool = False) -> RenderableType:
    """Return all that a user needs to judge and to use a fix."""
    detail = f"  {fix.detail}" if fix.detail else ""
    parts: list[RenderableType] = [
        Text.assemble((fix.model, "bold"), "  ", _WORDS[fix.status], detail)
    ]
    if fix.breaks:
        of_sizes = fix.breaks[0].code.startswith(RECOMPILED)
        title = "Compiled again for other sizes" if of_sizes else "Graph breaks"
        parts += ["", Text(title, "bold"), Indented(_table(_breaks(fix)))]
    if fix.code:
        parts += ["", Text("Fix", "bold"), *_fix(fix, verbose=verbose)]
    if fix.verification is not None:
        verification = Indented(_table(_verification(fix.verification)))
        parts += ["", Text("Verification", "bold"), verification]
        parts.append(Indented(Text("At reduced depth, on this machine's CPU.", "dim")))
    if fix.cost is not None:
        parts.append(Indented(plain(cost_words(fix.cost))))
    for rejection in fix.rejections:
        line = f"rejected by the script: {' and '.join(rejection.changes)}: {rejection.reason}"
        parts += ["", plain(line)]
    if fix.regions:
        parts += ["", Text("Compile these instead", "bold")]
        for region in fix.regions:
            line = f"{region.name} ({region.kind}): {region.share:.0%} of the operators"
            parts.append(Indented(plain(line)))
    if verbose or not fix.verification:
        parts += ["", Text("Tried", "bold"), Indented(_table(_trials(fix)))]
    evaluations = f"{len(fix.trials)} evaluations, {fix.seconds:.0f} s"
    limit = f"; ended by the limit of {fix.limit}" if fix.limit else ""
    parts += ["", Text(evaluations + limit, "dim")]
    return Group(*parts)


def cost_words(cost: FixCost) -> str:
    """`A call takes 12 ms in eager mode, 9.1 ms compiled without the fix, and 7.2 ms with it.`"""
    eager, without, with_fix = (
        "no time that could be measured" if seconds is None else milliseconds(seconds)
        for seconds in (cost.eager, cost.without, cost.with_fix)
    )
    sentence = f"A call takes {eager} in eager mode, {without} compiled without the fix"
    sentence += f", and {with_fix} with it"
    if cost.without and cost.with_fix:
        sentence += f" ({cost.without / cost.with_fix:.2f} times as fast)"
    return f"{sentence}: Inductor, one thread, medians."


def _table(rows: Iterable[Sequence[str | Text]]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for row in rows:
        table.add_row(*(plain(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def _breaks(fix: Fix) -> Iterator[tuple[str | Text, ...]]:
    before, left = ({b.fingerprint for b in breaks} for breaks in (fix.breaks, fix.left))
    for graph_break in (*fix.breaks, *(b for b in fix.left if b.fingerprint not in before)):
        if graph_break.fingerprint not in left:
            mark = Text("removed", "green")
        else:
            mark = Text("remains" if graph_break.fingerprint in before else "appears", "yellow")
        place = f"{graph_break.file}:{graph_break.line}"
        yield mark, graph_break.code, place, reason_title(graph_break)


def _fix(fix: Fix, *, verbose: bool) -> Iterator[RenderableType]:
    """The lines to change, where that is all, or else the context manager to paste."""
    if fix.patch:
        yield code(fix.patch, "diff")
    others = [change.name for change in fix.changes if change.kind is not FixKind.REWRITE]
    if fix.patch and not others and not verbose:
        yield plain(
            "\n--patch FILE writes this diff; --verbose prints a context manager that does the "
            "same without a change of the file.\n",
            "dim",
        )
        yield from (plain(line) for line in conditions(fix))
        return
    if fix.patch:
        besides = f", with what the diff leaves out ({' and '.join(others)})" if others else ""
        yield plain(f"\nor, without a change of the file{besides}:\n", "bold")
    yield code(fix.code)


def conditions(fix: Fix) -> Iterator[str]:
    """Yield what a diff must have said beside it; the code of a context manager ends with it."""
    yield "Holds if:"
    yield from (f"- {condition}" for condition in fix.holds_if)


def _verification(verification: Verification) -> Iterator[tuple[str | Text, ...]]:
    yield from (("", "tried", text) for text in verification.tried)
    for step in verification.steps:
        mark = Text("ok", "green") if step.passed else Text("failed", "red")
        yield mark, step.name, step.detail
    for name, label in _COUNTED.items():
        before, after = getattr(verification, name)
        without = "" if before is None else f"{before} without the fix, "
        yield "", label, f"{without}{after} with it"


def _trials(fix: Fix) -> Iterator[tuple[str, str]]:
    for trial in fix.trials:
        result = trial.error or (f"{trial.breaks} graph breaks" if trial.breaks else "one graph")
        if any(graph_break.code.startswith(RECOMPILED) for graph_break in fix.breaks):
            result = trial.detail
        yield " and ".join(trial.changes) or "as it is", result
