"""How results are put to people, the same in the report and in the terminal."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from compilewatch.analysis import summary
from compilewatch.analysis.rows import Cell, TargetReason
from compilewatch.contract.targets import in_default_environment, target_label
from compilewatch.records import ChangeKind, Depth, GraphBreak, Mode, Request, Result, Status
from compilewatch.records.views import RunView

# torch/_dynamo/exc.py, get_gbid_documentation_link: how torch itself links an entry.
REGISTRY_PAGE = "https://meta-pytorch.github.io/compile-graph-break-site/gb/gb{number}.html"


CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Outcome(StrEnum):
    """Status and phase together: an error before the compiler was asked is no compile error."""

    COMPILE_ERROR = "compile_error"
    GRAPH_BREAK = "graph_break"
    MISMATCH = "mismatch"
    NO_VERDICT = "no_verdict"
    NOT_RUN = "not_run"
    PASS = "pass"


OUTCOME_LABELS: dict[Outcome, str] = {
    Outcome.PASS: "pass",
    Outcome.GRAPH_BREAK: "graph break",
    Outcome.MISMATCH: "mismatch",
    Outcome.COMPILE_ERROR: "compile error",
    Outcome.NO_VERDICT: "no verdict",
    Outcome.NOT_RUN: "not run",
}
"""In the order in which columns and bars show them."""

OTHER_OUTCOMES: dict[Outcome, tuple[str, str]] = {
    Outcome.GRAPH_BREAK: ("with graph breaks", "with graph breaks"),
    Outcome.MISMATCH: ("mismatch", "mismatches"),
    Outcome.COMPILE_ERROR: ("compile error", "compile errors"),
    Outcome.NO_VERDICT: ("error", "errors"),
    Outcome.NOT_RUN: ("not run", "not run"),
}
"""What the headline calls one and several results that are no pass."""

OUTCOME_MEANINGS: dict[Outcome, str] = {
    Outcome.PASS: "captured in one graph without a break",
    Outcome.GRAPH_BREAK: "runs, but in pieces",
    Outcome.MISMATCH: "compiled, but computes something else than eager",
    Outcome.COMPILE_ERROR: "the compiler raised an error",
    Outcome.NO_VERDICT: "ended before the compiler answered: "
    "an error before compiling, a timeout, out of memory or a crash",
    Outcome.NOT_RUN: "skipped or unsupported; not run is not passed",
}

CHANGE_LABELS: dict[ChangeKind, str] = {
    ChangeKind.REGRESSION: "Regressions",
    ChangeKind.FIXED: "Fixed",
    ChangeKind.NEW: "New",
    ChangeKind.NOT_SELECTED: "Not selected",
    ChangeKind.PENDING: "Pending",
    ChangeKind.MISSING: "Missing",
    ChangeKind.GONE: "Removed",
    ChangeKind.NEWLY_TESTED: "Newly tested",
    ChangeKind.NO_LONGER_TESTED: "No longer tested",
}


def outcome(result: Result) -> Outcome:
    """The one group a result is counted in."""
    if result.status is Status.ERROR:
        return Outcome.COMPILE_ERROR if result.is_verdict else Outcome.NO_VERDICT
    if result.status in (Status.SKIPPED, Status.UNSUPPORTED):
        return Outcome.NOT_RUN
    if result.status in (Status.PASS, Status.GRAPH_BREAK, Status.MISMATCH):
        return Outcome(result.status.value)
    return Outcome.NO_VERDICT


def headline(view: RunView) -> str:
    """`1 of 19 models compiles without graph breaks (5.3 %); 18 errors`.

    Of all that was planned: what failed, was skipped or is missing is named behind it. With
    several targets or modes the unit is a request, a model on a target.
    """
    total, passed = summary.planned(view), summary.summarise(view).passed
    targets = {r.request.target for r in view.results} | set(view.run.targets)
    unit = "model" if len(targets) <= 1 else "request"
    verb = "compiles" if passed == 1 else "compile"
    if total != 1:
        unit += "s"
    counts = Counter(outcome(result) for result in view.results)
    others = [
        f"{counts[kind]:,} {label if counts[kind] == 1 else plural_label}"
        for kind, (label, plural_label) in OTHER_OUTCOMES.items()
        if counts[kind]
    ]
    if missing := total - len(view.results):
        others.append(f"{missing:,} without a result")
    share = percent(summary.passed_share(view))
    said = f"{passed:,} of {total:,} {unit} {verb} without graph breaks ({share})"
    return "; ".join([said, *others])


def status_words(result: Result) -> str:
    """`pass`, `graph break`, `compile error`, `error in create`, `timeout in eager`, `skipped`."""
    kind = outcome(result)
    if kind is Outcome.NO_VERDICT:
        return f"{result.status.value} in {result.phase.value}"
    if kind is Outcome.NOT_RUN:
        return result.status.value
    return OUTCOME_LABELS[kind]


def why(result: Result) -> tuple[str, ...]:
    """Causes in few words: titles of breaks, the code of an error, else what the result says."""
    if result.breaks:
        return tuple(dict.fromkeys(reason_title(each) for each in result.breaks))
    if result.error is not None:
        code = result.error.code
        return (code.replace("_", " ") if code.islower() else code,)  # `NCC_EVRF009` is a name
    said = () if outcome(result) is Outcome.PASS else (result.detail,)
    return tuple(filter(None, said))


def first_place(result: Result) -> str:
    """`modeling_longformer.py:1348 in _pad_to_window_size`: where it first breaks or fails."""
    place = result.breaks[0] if result.breaks else result.error
    if place is None or place.file is None:
        return "–"
    return f"{place.file.rpartition('/')[2]}:{place.line} in {place.function}"


def first_reason(result: Result) -> str:
    """Why, in one line; how many causes more there are."""
    if not result.breaks:
        return result.detail
    titles = why(result)
    return titles[0] + (f" (and {len(titles) - 1} more)" if len(titles) > 1 else "")


def cell_words(cell: Cell) -> str:
    """`pass`, `compile error`; of eager mode with the target that met the failure."""
    if cell.result is None:
        return OUTCOME_LABELS[Outcome.PASS]
    words = status_words(cell.result)
    target = cell.result.request.target
    return words if target.name == cell.layer else f"{words} ({target_label(target)})"


def cause_words(reason: TargetReason) -> str:
    """`GB0170 Data-dependent branching`, `type_error in compile`."""
    return reason.label if reason.phase is None else f"{reason.label} in {reason.phase.value}"


def registry_page(code: str) -> str | None:
    """The page of PyTorch's graph break site for `GB0170`; None for a code of ours."""
    number = code.removeprefix("GB")
    return REGISTRY_PAGE.format(number=number) if number != code and number.isdigit() else None


def reason_title(graph_break: GraphBreak) -> str:
    """One line for a cause: torch's type where it has one, else our code in words."""
    return graph_break.gb_type or graph_break.code.replace("_", " ")


def printable(text: str) -> str:
    """Without terminal escapes and control characters, which messages of compilers may hold."""
    return CONTROL.sub("", text)


def percent(ratio: float | None) -> str:
    """`97.3 %`; never rounded up to 100 % or down to 0 %; a dash where there is no ratio."""
    if ratio is None:
        return "–"
    shown = f"{ratio:.1%}"
    if shown == "100.0%":
        return "100 %" if ratio == 1 else ">99.9 %"
    if shown == "0.0%":
        return "0 %" if ratio == 0 else "<0.1 %"
    return shown.replace("%", " %")


def quantity(number: float | None) -> str:
    """`1,804`, `382 M`, `671 B`: whole up to 99,999, then three digits and a unit."""
    if number is None:
        return "–"
    if number < 100_000:
        return f"{number:,.0f}"
    # 999,950 is `1 M`, not `1e+03 k`: the unit is chosen for the rounded number.
    unit, size = next(
        u for u in (("k", 1e3), ("M", 1e6), ("B", 1e9), ("T", 1e12)) if number < 999.5 * u[1]
    )
    scaled = number / size
    return f"{scaled:.0f} {unit}" if scaled >= 99.95 else f"{scaled:.3g} {unit}"


def seconds(duration: float | None) -> str:
    """`0.04 s`, `8.4 s`, `3 min 20 s`, `1 h 05 min`."""
    if duration is None:
        return "–"
    if duration < 59.95:
        return f"{duration:.2f} s" if duration < 1 else f"{duration:.1f} s"
    minutes, rest = divmod(round(duration), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def memory(size: int | None) -> str:
    """`512 MiB`, `1.3 GiB`."""
    if size is None:
        return "–"
    return f"{size / 2**20:.0f} MiB" if size < 2**30 else f"{size / 2**30:.1f} GiB"


def main_artifacts(paths: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Artifacts that a person opens first (tlparse's pages, a trace), and the many others.

    Runs of earlier versions hold those pages unpacked: an index among the dozens that it links to.
    """
    first: list[str] = []
    others: list[str] = []
    for path in paths:
        is_first = path.endswith(("/index.html", ".log")) or "/tlparse/" not in path
        (first if is_first else others).append(path)
    first.sort(key=lambda path: not path.endswith(("/index.html", "/tlparse.zip")))
    return tuple(first), tuple(others)


def decompressing(result: Result) -> str:
    """What to type for the artifacts as plain files; "" where none is compressed."""
    if not any(path.endswith((".zst", "/tlparse.zip")) for path in result.artifacts):
        return ""
    name = shlex.quote(result.request.model.name)
    return f"compilewatch show {name} --artifacts DIRECTORY"


def commands(request: Request) -> tuple[str, str, str]:
    """What to type to see it again: plain PyTorch, explained, and the same check anew."""
    name = shlex.quote(request.model.name)
    sweep = f"compilewatch sweep --source {request.model.source} --models {name}"
    if request.target.name != "dynamo":
        sweep += f" --targets {request.target.name}"
    if request.target.mode is not Mode.EVAL:
        sweep += f" --modes {request.target.mode.value}"
    if request.target.dynamic:
        sweep += " --dynamic"
    if not in_default_environment(request.target):
        sweep += f" --environments {request.target.environment}"
    if request.depth is not Depth.FULL:
        sweep += f" --depth {request.depth.value}"
    asked = "" if request.target.name == "dynamo" else f" --target {request.target.name}"
    where = (
        ""
        if in_default_environment(request.target)
        else f" --environment {request.target.environment}"
    )
    return (
        f"compilewatch reproduce {name}{where}",
        f"compilewatch explain {name}{asked}{where}",
        f"{sweep} --fresh",
    )
