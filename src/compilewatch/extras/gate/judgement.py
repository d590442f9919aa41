"""What a check means for a repository: which breaks are its own, which are new, what else fails."""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from compilewatch import records
from compilewatch.api.check import CheckResult
from compilewatch.errors import ConfigError, UsageError, did_you_mean
from compilewatch.extras.gate import own_code
from compilewatch.extras.gate.baseline import NAME, KnownBreak, load
from compilewatch.files import toml_table
from compilewatch.records import RecompilationKind, reason_label
from compilewatch.report.wording import REMEDIES, plural, recompilation_cause

SETTINGS: dict[str, tuple[str, tuple[type, ...]]] = {
    "own": ("a name or a list of names", (str, list, tuple, set, frozenset)),
    "third_party": ("'report' or 'fail'", (str,)),
    "recompilations": ("a whole number", (int,)),
    "captured_share": ("a number from 0 to 1", (int, float)),
    "fullgraph": ("true or false", (bool,)),
    "numerics": ("true or false", (bool,)),
    "compilations": ("a whole number", (int,)),
    "baseline": ("a path", (str,)),
    "models": ("a list of models", (list,)),
    "manifest": ("a path", (str,)),
}
"""What each setting may be, in words and as types."""

RULES = tuple(SETTINGS)[:7]

_NOWHERE = "?"
"""The file of a break that has no line of Python."""

_FRAMES = 100
"""A longer call path comes from recursion, of which the innermost frames say enough."""

State = Literal["new", "known", "moved", "elsewhere"]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What fails a check.

    `own` are packages whose breaks count, beside the own code of the repository at `root`.
    `recompilations` and `compilations` are how many are accepted, `captured_share` the smallest
    share (0 to 1); None accepts any. `numerics` compares the results with eager mode.
    """

    root: Path
    own: tuple[str, ...] = ()
    third_party: Literal["report", "fail"] = "report"
    recompilations: int | None = None
    captured_share: float | None = None
    fullgraph: bool = False
    numerics: bool = False
    compilations: int | None = None

    def removed(self, known: KnownBreak) -> bool:
        """Whether the repository no longer has the statement of a known break."""
        if known.file.partition("/")[0] in self.own:
            return False
        texts = own_code.statements_of(self.root / known.file, known.function) or ()
        return not any(own_code.same_shape(text, known.text) for text in texts)


def project_settings(root: Path) -> dict[str, Any]:
    """Return the table `[tool.compilewatch]` of a repository. Raises ConfigError."""
    path = root / "pyproject.toml"
    content = toml_table(path) if path.exists() else {}
    table = content.get("tool", {}).get("compilewatch", {})
    for name, value in table.items():
        if name not in SETTINGS:
            hint = did_you_mean(name, SETTINGS)
            raise ConfigError(f"{path}: [tool.compilewatch] has no setting {name!r}{hint}")
        if problem := _problem(name, value):
            raise ConfigError(f"{path}: [tool.compilewatch] {problem}")
    return dict(table)


def project_root(folder: Path) -> Path:
    """Return the repository that a folder is in: the nearest one above with a pyproject.toml.

    Without one, it is the nearest with a `.git`, otherwise the folder itself.
    """
    folder = folder.resolve()
    for mark in ("pyproject.toml", ".git"):
        for parent in (folder, *folder.parents):
            if (parent / mark).exists():
                return parent
    return folder


def _problem(name: str, value: Any) -> str:
    """Say what is wrong with the value of a setting, otherwise ""."""
    words, types = SETTINGS[name]
    wrong = not isinstance(value, types) or (isinstance(value, bool) and bool not in types)
    if name == "third_party":
        wrong = value not in ("report", "fail")
    return f"{name} is {words}, not {value!r}" if wrong else ""


def rules_of(root: Path, *levels: Mapping[str, Any]) -> Rules:
    """Return the rules of a call; the last of `levels` that has one wins. Raises UsageError."""
    values: dict[str, Any] = {}
    for level in levels:
        values |= {k: v for k, v in level.items() if k in RULES and v is not None}
    for name, value in values.items():
        if problem := _problem(name, value):
            raise UsageError(problem)
    own = values.get("own", ())
    values["own"] = (own,) if isinstance(own, str) else tuple(own)
    return Rules(root=root, **values)


def opened(
    root: Path, *levels: Mapping[str, Any], baseline: str | None
) -> tuple[Rules, Path, tuple[KnownBreak, ...]]:
    """Return the rules of a repository, the path of its baseline, and the known breaks in it.

    `levels` win over the settings of the repository, and the option `baseline` over its own.
    Raises ConfigError, UsageError.
    """
    settings = project_settings(root)
    path = root / (baseline or settings.get("baseline") or NAME)
    return rules_of(root, settings, *levels), path, load(path)


class JudgedBreak(records.GraphBreak, frozen=True, kw_only=True):
    """A graph break as a repository sees it.

    In own code `file` and `line` are those of the repository, `function` is qualified
    (`Model.forward`), and `user_stack` has the frames of own code that lead there, outermost first.
    `state` is relative to the baseline, `elsewhere` in other packages. `text` is the statement,
    `statement_line` its first line. `known` is the entry of the baseline that it is, and `note`
    says what is not as that has it.
    """

    state: State
    text: str = ""
    statement_line: int = 0
    known: KnownBreak | None = None
    note: str = ""

    @property
    def own(self) -> bool:
        return self.state != "elsewhere"

    @property
    def place(self) -> tuple[str, int, str]:
        """By which a report shows it once: several lines of one statement are one place."""
        return (self.file, self.statement_line, self.code)

    @property
    def entry(self) -> KnownBreak:
        """What a baseline knows it by."""
        return KnownBreak(
            file=self.file,
            function=self.function,
            code=self.code,
            text=self.text,
            reason=reason_label(self),
        )


class CheckReport(records.Record, frozen=True, kw_only=True):
    """One check: `name` is the test or the model, `status` that of the result.

    `breaks` has each place once. `problems` are reasons to fail other than new breaks, a line each,
    `error` is a traceback, and `command` is what a person types to see it again.
    """

    name: str
    status: str
    breaks: tuple[JudgedBreak, ...] = ()
    problems: tuple[str, ...] = ()
    recompilations: int = 0
    error: str = ""
    verdict: bool = True
    command: str = ""

    def of(self, *states: State) -> tuple[JudgedBreak, ...]:
        """The breaks with one of these states."""
        return tuple(graph_break for graph_break in self.breaks if graph_break.state in states)

    @property
    def failed(self) -> bool:
        """Whether the rules do not accept what was met."""
        return bool(self.of("new") or self.problems)


def judge(
    checked: CheckResult,
    baseline: Sequence[KnownBreak],
    rules: Rules,
    *,
    name: str,
    command: str = "",
    code: Iterable[str] | None = None,
    kept: bool = False,
) -> CheckReport:
    """Return what a check means. A place in own code that the baseline does not hold is new.

    `code` are the files of the model on this machine: without one of the repository, the check
    fails, since it could not meet anything new. None does not look at that. If `kept`, the sizes
    that were called are to be served by what the first call compiled.
    """
    own = own_code.OwnCode(root=rules.root, packages=rules.own)
    second = checked.second_call.breaks if checked.second_call is not None else ()
    places: dict[tuple[str, int, str], Place] = {}
    for graph_break in (*checked.breaks, *second):
        judged, node = _in_repository(graph_break, checked.files, own)
        places.setdefault(judged.place, (judged, node))
    breaks = tuple(_against(baseline, list(places.values()), rules.removed))
    problems = [*_recompiled(checked, rules, own, kept=kept), *_problems(checked, breaks, rules)]
    if code is not None and rules.third_party == "report" and not problems:
        problems += _without_own_code(code, breaks, own)
    error = checked.result.error
    return CheckReport(
        name=name,
        status=checked.status.value,
        breaks=breaks,
        problems=tuple(problems),
        recompilations=len(checked.recompilations),
        error=f"{error.head}{error.tail}".strip() if error is not None else "",
        verdict=checked.result.is_verdict,
        command=command,
    )


Place = tuple[JudgedBreak, ast.AST | None]
"""A break, and the node of the function that it is in."""


def _against(
    baseline: Sequence[KnownBreak],
    places: Sequence[Place],
    removed: Callable[[KnownBreak], bool],
) -> Iterator[JudgedBreak]:
    """Yield breaks with their states: each entry of the baseline is one of them at most."""

    def same(entry: KnownBreak, judged: JudgedBreak, _: ast.AST | None) -> bool:
        return entry.identity == judged.entry.identity

    def in_function(entry: KnownBreak, judged: JudgedBreak, node: ast.AST | None) -> bool:
        alike = own_code.same_statement(entry.text, judged.text, node)
        return _function(entry) == _function(judged) and alike

    def moved(entry: KnownBreak, judged: JudgedBreak, _: ast.AST | None) -> bool:
        elsewhere = _function(entry) != _function(judged) and entry.code == judged.code
        return elsewhere and own_code.same_shape(entry.text, judged.text) and removed(entry)

    passes: tuple[tuple[State, Callable[..., bool]], ...] = (
        ("known", same),
        ("known", in_function),
        ("moved", moved),
    )
    left = list(baseline)
    entries: dict[int, tuple[State, KnownBreak]] = {}
    for state, is_entry in passes:
        for number, place in enumerate(places):
            entry = next((e for e in left if place[0].own and is_entry(e, *place)), None)
            if number not in entries and entry is not None:
                left.remove(entry)
                entries[number] = state, entry
    for number, (judged, _) in enumerate(places):
        state, known = entries.get(number, (judged.state, None))
        note = judged.note
        if known is not None and state == "moved":
            note = f"moved from {known.function} in {known.file}"
        elif state == "new" and not note:
            note = _of_function(judged, baseline, left, [other for other, _ in places])
        yield msgspec.structs.replace(judged, state=state, known=known, note=note)


def _function(place: KnownBreak | JudgedBreak) -> tuple[str, str, str]:
    return (place.file, place.function, place.code)


def _of_function(
    judged: JudgedBreak,
    baseline: Sequence[KnownBreak],
    left: Sequence[KnownBreak],
    places: Sequence[JudgedBreak],
) -> str:
    """Say what the baseline knows of the function of a new break."""
    known = [entry for entry in baseline if _function(entry) == _function(judged)]
    if not known:
        return ""
    other = [entry.text for entry in left if _function(entry) == _function(judged)]
    if other:
        return f"the baseline knows another line of {judged.function}: {other[0]}"
    count = sum(_function(place) == _function(judged) for place in places)
    return f"{judged.function} has {count} such lines, the baseline knows {len(known)}"


def _in_repository(
    graph_break: records.GraphBreak, files: Mapping[str, str], own: own_code.OwnCode
) -> Place:
    """Return a break as the repository sees it, and the node of its function.

    Its place is the innermost frame that is neither Python's nor Dynamo's own, as everywhere else:
    a `copy.deepcopy` in own code is a break of own code.
    """
    values = msgspec.structs.asdict(graph_break)
    line = own.line(graph_break.file, graph_break.line, files)
    text = records.source_line(graph_break).strip()
    ran = files.get(graph_break.file, "")
    function, statement, first, node = own_code.statement_at(
        ran, graph_break.line, graph_break.function, text
    )
    if line is None:
        return JudgedBreak(**values, state="elsewhere", text=text, statement_line=first), node
    shift = line.line - graph_break.line
    values |= {
        "file": line.file,
        "line": line.line,
        "function": function,
        "source_start": graph_break.source_start + shift,
        "user_stack": tuple(_own_frames(graph_break, files, own))[-_FRAMES:],
        "text": statement,
        "statement_line": first + shift,
    }
    note = "the file that ran is an older one: install the project again" if line.stale else ""
    return JudgedBreak(**values, state="new", note=note), node


def _own_frames(
    graph_break: records.GraphBreak, files: Mapping[str, str], own: own_code.OwnCode
) -> Iterator[records.StackFrame]:
    """The frames of own code in a break's stack up to its place."""
    here = (graph_break.file, graph_break.line)
    stack = graph_break.user_stack
    at = [n for n, frame in enumerate(stack) if (frame.file, frame.line) == here]
    for frame in stack[: at[-1] + 1] if at else stack:
        if (line := own.line(frame.file, frame.line, files)) is not None:
            yield msgspec.structs.replace(frame, file=line.file, line=line.line)


def _without_own_code(
    code: Iterable[str], breaks: Sequence[JudgedBreak], own: own_code.OwnCode
) -> Iterator[str]:
    """Say that nothing of the repository was checked, and what to do."""
    paths = list(dict.fromkeys(code))
    names = {path: path.rpartition("/")[2] for path in paths}
    if any(graph_break.own for graph_break in breaks) or any(
        own.line(names[p], 1, {names[p]: p}) for p in paths
    ):
        return
    at = paths[0] if paths else "a package"
    yield (
        f"no file of {own.root} is in it: the model is defined in {at}; check code of this "
        'repository, name the package in own=, or set third_party="fail"'
    )


def _problems(checked: CheckResult, breaks: Sequence[JudgedBreak], rules: Rules) -> Iterator[str]:
    if checked.status not in (
        records.Status.PASS,
        records.Status.GRAPH_BREAK,
        records.Status.MISMATCH,
    ):
        phase, error = checked.result.phase, checked.result.error
        if error is not None and error.type.endswith("ConstraintViolationError"):
            yield from _violations(error.message)
        elif phase is records.Phase.EAGER:
            yield f"the model fails in eager mode: {checked.detail}: correct it or its arguments"
        else:
            yield f"{checked.status.value} in the phase {phase.value}: {checked.detail}"
        return
    if checked.graphs == 0 and any(graph_break.file == _NOWHERE for graph_break in breaks):
        yield (
            "nothing of it is captured, as of a model of torch.jit or of a C extension: check the "
            "module or function that it was made of"
        )
    if rules.third_party == "fail":
        for graph_break in breaks:
            if not graph_break.own:
                place = f"{graph_break.file}:{graph_break.line}"
                yield f"graph break in {place}: {reason_label(graph_break)}"
    share = checked.captured_share
    if rules.captured_share is not None and (share is None or share < rules.captured_share):
        text = "unknown" if share is None else f"{share:.1%}"
        yield f"captured share {text}, at least {rules.captured_share:.1%} wanted"
    if rules.fullgraph and checked.fullgraph is False:
        verdict = checked.result.fullgraph
        reason = (verdict.reason or "" if verdict is not None else "").strip().splitlines()
        yield f"fullgraph=True rejects it: {reason[0] if reason else 'no reason given'}"
    numerics = checked.numerics
    if rules.numerics and numerics is None:
        yield "numerics: the results were not compared"
    if rules.numerics and numerics and numerics.differs:
        # A model that is not deterministic has nothing to compare with, and does not fail.
        yield f"differs from eager mode (compared with {numerics.reference}):"
        yield from (f"  {line}" for line in (*numerics.mismatches, numerics.alone) if line)


def _recompiled(
    checked: CheckResult, rules: Rules, own: own_code.OwnCode, *, kept: bool
) -> Iterator[str]:
    """Say what is compiled too often: the call, the cause and the line of each, and what to do."""
    again, graphs, remedies = checked.recompilations, checked.graphs or 0, REMEDIES
    if kept:
        again = tuple(one for one in again if one.kind not in _NARROWING)
        # Sizes of arguments are dynamic, so that this one is of what eager code has computed.
        of_eager = REMEDIES[RecompilationKind.VALUE]
        remedies = {**REMEDIES, RecompilationKind.FIRST_STATIC: of_eager}
    if kept and again:
        yield "a dimension that is to be dynamic compiles again with another size:"
    elif rules.compilations is not None and graphs > rules.compilations:
        yield f"{plural(graphs, 'compilation')}, {rules.compilations} accepted:"
    elif rules.recompilations is not None and len(again) > rules.recompilations:
        yield f"{plural(len(again), 'recompilation')}, {rules.recompilations} accepted:"
    else:
        return
    calls = checked.shapes.calls if checked.shapes is not None else ()
    for one in again:
        place = one.needed_by or records.StackFrame(
            file=one.file, line=one.line, function=one.function
        )
        if (line := own.line(place.file, place.line, checked.files)) is not None:
            place = msgspec.structs.replace(place, file=line.file, line=line.line)
        sizes = calls[one.call - 1].sizes if len(calls) >= one.call else {}
        named = "".join(f", {name}={size}" for name, size in sizes.items())
        cause = recompilation_cause(msgspec.structs.replace(one, needed_by=place))
        remedy = f"; {remedies[one.kind]}" if one.kind in remedies else ""
        yield f"  call {one.call}{named}: {cause}{remedy}"
        yield from (f"    {guard}" for guard in one.guards if one.needed_by is None)


_NARROWING = (RecompilationKind.BRANCH, RecompilationKind.MODULO)
"""What narrows a dynamic dimension, and does not specialise it."""


def _violations(message: str) -> Iterator[str]:
    """Say which dimension is specialised and where, a line each, of what torch says of that."""
    for dimension in message.split("\n  - ")[1:]:
        text, _, stack = dimension.partition("User stack:")
        lines = [line.strip() for line in stack.splitlines()]
        places = [number for number, line in enumerate(lines) if line.startswith("File ")]
        place = "".join(f": {lines[n]}: {lines[n + 1]}" for n in places[-1:])
        cause = text.partition(". If you")[0]
        yield f"a dimension that is to be dynamic is specialised: {cause}{place}"
