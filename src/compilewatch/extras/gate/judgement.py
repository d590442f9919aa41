"""What a check means for a repository: which breaks are its own, which are new, what else fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from compilewatch.api.check import CheckResult
from compilewatch.extras.gate.baseline import Identity, KnownBreak
from compilewatch.extras.gate.findings import BreakPlace, CheckReport, Finding, known_breaks
from compilewatch.extras.gate.places import own_path, qualified
from compilewatch.records import GraphBreak, Numerics, Phase, StackFrame, Status
from compilewatch.records.labels import reason_label, source_lines
from compilewatch.report.wording import plural, recompilation_lines

_NOWHERE = "?"
"""The file of a break that has no line of Python."""

_FRAMES = 100
"""A longer call path comes from recursion, of which the innermost frames say enough."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What fails a check.

    `own` are packages whose breaks count, beside all code below `root` that is not installed.
    `recompilations` is how many are accepted, `captured_share` the smallest share (0 to 1); None
    accepts any. `numerics` compares the results with eager mode.
    """

    root: Path
    own: tuple[str, ...] = ()
    third_party: Literal["report", "fail"] = "report"
    recompilations: int | None = None
    captured_share: float | None = None
    fullgraph: bool = False
    numerics: bool = False


def judge(
    checked: CheckResult,
    baseline: Mapping[Identity, KnownBreak],
    rules: Rules,
    *,
    name: str,
    command: str = "",
) -> CheckReport:
    """Return what a check means. A place in own code that the baseline does not hold is new."""
    second = checked.second_call.breaks if checked.second_call is not None else ()
    findings = [_finding(each, checked.files, rules) for each in (*checked.breaks, *second)]
    met = {known.identity: known.places for known in known_breaks(findings)}
    judged = tuple(
        msgspec.structs.replace(each, new=True, moved=_moved(each, baseline, met.keys()))
        if each.own and met[each.identity] > _places(baseline, each.identity)
        else each
        for each in findings
    )
    return CheckReport(
        name=name,
        status=checked.status.value,
        findings=judged,
        problems=tuple(_problems(checked, judged, rules)),
        recompilations=len(checked.recompilations),
        error=_error_text(checked),
        verdict=checked.result.is_verdict,
        command=command,
    )


def _places(baseline: Mapping[Identity, KnownBreak], identity: Identity) -> int:
    known = baseline.get(identity)
    return known.places if known is not None else 0


def _moved(
    finding: Finding, baseline: Mapping[Identity, KnownBreak], met: Iterable[Identity]
) -> str:
    """Say where a break may have come from: a known one of the same reason that was not met."""
    name = finding.place.function.rpartition(".")[2]
    for old in sorted(baseline.values()):
        alike = old.file == finding.place.file or old.function.rpartition(".")[2] == name
        if old.code == finding.code and old.identity not in met and alike:
            return f"{old.function} in {old.file}"
    return ""


def _finding(found: GraphBreak, files: Mapping[str, str], rules: Rules) -> Finding:
    """Return a break as the repository sees it.

    Its place is the innermost frame that is neither Python's nor Dynamo's own, as everywhere else:
    a `copy.deepcopy` in own code is a break of own code.
    """
    lines = source_lines(found)
    path = own_path(found.file, files, rules.root, rules.own)
    function = found.function
    if path is not None:
        function = qualified(files.get(found.file, ""), found.line, found.function)
    frames = [
        BreakPlace(file=own, line=frame.line, function=frame.function)
        for frame in _up_to(found)
        if (own := own_path(frame.file, files, rules.root, rules.own)) is not None
    ]
    return Finding(
        own=path is not None,
        new=False,
        place=BreakPlace(file=path or found.file, line=found.line, function=function),
        code=found.code,
        reason=reason_label(found),
        fingerprint=found.fingerprint,
        text=found.reason.strip(),
        explanation=found.explanation,
        hints=found.hints,
        gb_id=found.gb_id,
        path=tuple(frames[-_FRAMES:]),
        source_start=lines[0][0] if lines else 0,
        source=tuple(text for _, text in lines),
    )


def _up_to(found: GraphBreak) -> Sequence[StackFrame]:
    """The frames of a break's stack up to its place."""
    here = (found.file, found.line)
    at = [n for n, frame in enumerate(found.user_stack) if (frame.file, frame.line) == here]
    return found.user_stack[: at[-1] + 1] if at else found.user_stack


def _problems(checked: CheckResult, findings: Sequence[Finding], rules: Rules) -> Iterator[str]:
    if checked.status not in (Status.PASS, Status.GRAPH_BREAK, Status.MISMATCH):
        phase = checked.result.phase
        if phase is Phase.EAGER:
            yield f"the model fails in eager mode: {checked.detail}: correct it or its arguments"
        else:
            yield f"{checked.status.value} in the phase {phase.value}: {checked.detail}"
        return
    if checked.graphs == 0 and any(each.place.file == _NOWHERE for each in findings):
        yield (
            "nothing of it is captured, as of a model of torch.jit or of a C extension: check the "
            "module or function that it was made of"
        )
    if rules.third_party == "fail":
        for each in findings:
            if not each.own:
                yield f"graph break in {each.place.file}:{each.place.line}: {each.reason}"
    again = checked.recompilations
    if rules.recompilations is not None and len(again) > rules.recompilations:
        yield f"{plural(len(again), 'recompilation')}, {rules.recompilations} accepted:"
        yield from (f"  {line}" for line in recompilation_lines(again))
    share = checked.captured_share
    if rules.captured_share is not None and (share is None or share < rules.captured_share):
        said = "unknown" if share is None else f"{share:.1%}"
        yield f"captured share {said}, at least {rules.captured_share:.1%} wanted"
    if rules.fullgraph and checked.fullgraph is False:
        verdict = checked.result.fullgraph
        reason = (verdict.reason or "" if verdict is not None else "").strip().splitlines()
        yield f"fullgraph=True rejects it: {reason[0] if reason else 'no reason given'}"
    if rules.numerics:
        yield from _differences(checked.numerics)


def _error_text(checked: CheckResult) -> str:
    error = checked.result.error
    return f"{error.head}{error.tail}".strip() if error is not None else ""


def _differences(numerics: Numerics | None) -> Iterator[str]:
    """A model that is not deterministic has nothing to compare with, and does not fail."""
    if numerics is None:
        yield "numerics: the results were not compared"
    elif numerics.deterministic and not numerics.matches:
        yield f"differs from eager mode (compared with {numerics.reference}):"
        yield from (f"  {each}" for each in numerics.mismatches)
