"""A fix as text: what goes, the code to paste, the verification, and what was tried."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from compilewatch.extras.fixes.records import Fix, FixCost, FixKind, FixStatus, Verification
from compilewatch.records import GraphBreak
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


def panel_text(found: Fix) -> str:
    """Return the panel as wide as the terminal, without colours."""
    width = shutil.get_terminal_size(fallback=(100, 24)).columns
    console = Console(width=width, no_color=True, highlight=False, file=io.StringIO())
    with console.capture() as captured:
        console.print(fix_panel(found), crop=False)
    return captured.get().rstrip()


def fix_panel(found: Fix, *, verbose: bool = False) -> RenderableType:
    """Return all that a user needs to judge and to use a fix."""
    parts: list[RenderableType] = [
        Text.assemble(
            (found.model, "bold"),
            "  ",
            _WORDS[found.status],
            f"  {found.detail}" if found.detail else "",
        )
    ]
    if found.breaks:
        parts += ["", Text("Graph breaks", "bold"), Indented(_breaks(found))]
    if found.code:
        parts += ["", Text("Fix", "bold"), *_fix(found, verbose=verbose)]
    if found.verification is not None:
        parts += ["", Text("Verification", "bold"), Indented(_verification(found.verification))]
        parts.append(Indented(Text("At reduced depth, on this machine's CPU.", "dim")))
    if found.cost is not None:
        parts.append(Indented(plain(cost_words(found.cost))))
    for each in found.rejections:
        line = f"rejected by the script: {' and '.join(each.changes)}: {each.reason}"
        parts += ["", plain(line)]
    if found.regions:
        parts += ["", Text("Compile these instead", "bold")]
        for region in found.regions:
            line = f"{region.name} ({region.kind}): {region.share:.0%} of the operators"
            parts.append(Indented(plain(line)))
    if verbose or not found.verification:
        parts += ["", Text("Tried", "bold"), Indented(_trials(found))]
    evaluations = f"{len(found.trials)} evaluations, {found.seconds:.0f} s"
    limit = f"; ended by the limit of {found.limit}" if found.limit else ""
    parts += ["", Text(evaluations + limit, "dim")]
    return Group(*parts)


def cost_words(cost: FixCost) -> str:
    """`A call takes 12 ms in eager mode, 9.1 ms compiled without the fix, and 7.2 ms with it.`"""
    eager, without, with_fix = (
        "no time that could be measured" if each is None else milliseconds(each)
        for each in (cost.eager, cost.without, cost.with_fix)
    )
    said = f"A call takes {eager} in eager mode, {without} compiled without the fix"
    said += f", and {with_fix} with it"
    if cost.without and cost.with_fix:
        said += f" ({cost.without / cost.with_fix:.2f} times as fast)"
    return f"{said}: Inductor, one thread, medians."


def _place(each: GraphBreak) -> str:
    return f"{each.file}:{each.line}"


def _breaks(found: Fix) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    left = {each.fingerprint for each in found.left}
    for each in found.breaks:
        gone = each.fingerprint not in left
        table.add_row(
            Text("removed" if gone else "remains", "green" if gone else "yellow"),
            plain(each.code),
            plain(_place(each)),
            plain(each.gb_type or each.reason.splitlines()[0]),
        )
    new = left - {each.fingerprint for each in found.breaks}
    for each in found.left:
        if each.fingerprint in new:
            table.add_row(Text("appears", "yellow"), plain(each.code), plain(_place(each)), "")
    return table


def _fix(found: Fix, *, verbose: bool) -> Iterator[RenderableType]:
    """The lines to change, where that is all, or else the context manager to paste."""
    if found.patch:
        yield code(found.patch, "diff")
    others = [each.name for each in found.changes if each.kind is not FixKind.REWRITE]
    if found.patch and not others and not verbose:
        yield plain(
            "\n--patch FILE writes this diff; --verbose prints a context manager that does the "
            "same without a change of the file.\n",
            "dim",
        )
        yield from (plain(line) for line in conditions(found))
        return
    if found.patch:
        besides = f", with what the diff leaves out ({' and '.join(others)})" if others else ""
        yield plain(f"\nor, without a change of the file{besides}:\n", "bold")
    yield code(found.code)


def conditions(found: Fix) -> Iterator[str]:
    """Yield what a diff must have said beside it; the code of a context manager ends with it."""
    yield "Holds if:"
    yield from (f"- {each}" for each in found.holds_if)


def _verification(verification: Verification) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for each in verification.tried:
        table.add_row("", plain("tried"), plain(each))
    for step in verification.steps:
        mark = Text("ok", "green") if step.passed else Text("failed", "red")
        table.add_row(mark, plain(step.name), plain(step.detail))
    for name, label in _COUNTED.items():
        before, after = getattr(verification, name)
        without = "" if before is None else f"{before} without the fix, "
        table.add_row("", plain(label), plain(f"{without}{after} with it"))
    return table


def _trials(found: Fix) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for each in found.trials:
        said = each.error or (f"{each.breaks} graph breaks" if each.breaks else "one graph")
        table.add_row(plain(" and ".join(each.changes) or "as it is"), plain(said))
    return table
