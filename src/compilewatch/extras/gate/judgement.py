"""What a check means for a repository: which breaks are its own, which are new."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from compilewatch.api.check import CheckResult
from compilewatch.extras.gate.baseline import Identity, KnownBreak
from compilewatch.records import GraphBreak, StackFrame, Status
from compilewatch.records.labels import reason_label
from compilewatch.report.later_calls import recompilation_lines
from compilewatch.report.wording import plural

_INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What fails a check.

    `own` are packages whose breaks count, beside all code below `root` that is not installed.
    `recompilations` is how many are accepted, `captured_share` the smallest share (0 to 1); None
    accepts any.
    """

    root: Path
    own: tuple[str, ...] = ()
    third_party: Literal["report", "fail"] = "report"
    recompilations: int | None = None
    captured_share: float | None = None
    fullgraph: bool = False


@dataclass(frozen=True, kw_only=True)
class OwnBreak:
    """A break of the own code: its place in the repository, and the way to it in the own code."""

    known: KnownBreak
    found: GraphBreak
    path: str
    calls: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The breaks of a check: those that are `new`, all `own` ones, and those of other packages.

    `problems` are other reasons to fail, a line each.
    """

    new: tuple[OwnBreak, ...]
    own: tuple[KnownBreak, ...]
    third_party: tuple[GraphBreak, ...]
    problems: tuple[str, ...]
    recompilations: int

    @property
    def failed(self) -> bool:
        return bool(self.new or self.problems)


def judge(checked: CheckResult, baseline: Mapping[Identity, KnownBreak], rules: Rules) -> Judgement:
    """Return what a check means. A place in own code that the baseline does not hold is new."""
    own: list[OwnBreak] = []
    third_party: list[GraphBreak] = []
    for found in checked.breaks:
        place = _own_place(found, checked.files, rules)
        if place is None:
            third_party.append(found)
        else:
            own.append(place)
    counted = _counted(own)
    new = tuple(
        each
        for each in own
        if (known := counted[each.known.identity]).places
        > (baseline[known.identity].places if known.identity in baseline else 0)
    )
    return Judgement(
        new=new,
        own=tuple(sorted(counted.values())),
        third_party=tuple(third_party),
        problems=tuple(_problems(checked, third_party, rules)),
        recompilations=len(checked.recompilations),
    )


def _counted(own: Iterable[OwnBreak]) -> dict[Identity, KnownBreak]:
    found: dict[Identity, KnownBreak] = {}
    for each in own:
        known = found.get(each.known.identity)
        found[each.known.identity] = (
            each.known if known is None else replace(known, places=known.places + 1)
        )
    return found


def _problems(
    checked: CheckResult, third_party: Sequence[GraphBreak], rules: Rules
) -> Iterable[str]:
    if checked.status not in (Status.PASS, Status.GRAPH_BREAK):
        phase = checked.result.phase.value
        yield f"{checked.status.value} in the phase {phase}: {checked.detail}"
        return
    if third_party and rules.third_party == "fail":
        for each in third_party:
            yield f"graph break in {each.file}:{each.line}: {reason_label(each)}"
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


def _own_place(found: GraphBreak, files: Mapping[str, str], rules: Rules) -> OwnBreak | None:
    """Return a break with its place, None if its innermost frame is not in own code."""
    frames = found.user_stack or (
        StackFrame(file=found.file, line=found.line, function=found.function),
    )
    inner = frames[-1]
    path = own_path(inner.file, files, rules)
    if path is None:
        return None
    known = KnownBreak(
        file=path,
        function=qualified(files.get(inner.file, ""), inner.line, inner.function),
        code=found.code,
        reason=reason_label(found),
    )
    calls = tuple(
        f"{own}:{frame.line} in {frame.function}"
        for frame in frames
        if (own := own_path(frame.file, files, rules)) is not None
    )
    return OwnBreak(known=known, found=found, path=f"{path}:{inner.line}", calls=calls)


def own_path(file: str, files: Mapping[str, str], rules: Rules) -> str | None:
    """Return the path in the repository of a file that is own code, None for another file.

    A file of a package that `rules.own` names is own code wherever it is installed.
    """
    package = file.partition("/")[0].removesuffix(".py")
    path = Path(files[file]).resolve() if file in files else None
    root = rules.root.resolve()
    if path is not None and path.is_relative_to(root):
        inside = path.relative_to(root)
        if not set(inside.parts) & set(_INSTALLED):
            return inside.as_posix()
    return file if package in rules.own else None


def qualified(path: str, line: int, function: str) -> str:
    """Return the qualified name of the function around a line (`Model.forward`).

    It is `function` where the file cannot be read.
    """
    best: tuple[int, str] | None = None
    try:
        changed = Path(path).stat().st_mtime_ns
    except OSError:
        return function
    for first, last, name in _functions(path, changed):
        if first <= line <= last and (best is None or first >= best[0]):
            best = (first, name)
    return best[1] if best is not None else function


@cache
def _functions(path: str, _changed: int) -> tuple[tuple[int, int, str], ...]:
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    found: list[tuple[int, int, str]] = []
    waiting: list[tuple[ast.AST, str]] = [(tree, "")]
    while waiting:
        node, prefix = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                if not isinstance(child, ast.ClassDef):
                    first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                    found.append((first, child.end_lineno or child.lineno, name))
                waiting.append((child, f"{name}."))
            else:
                waiting.append((child, prefix))
    return tuple(found)
