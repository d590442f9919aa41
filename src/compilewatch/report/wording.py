"""How results and runs are worded, the same in the report and in the terminal."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from compilewatch import records
from compilewatch.analysis import summary
from compilewatch.analysis.leverage import By, Leverage, LeverageStep, StepFix, VerifiedTotal
from compilewatch.analysis.summary import Cell
from compilewatch.contract import targets as catalogue

# torch/_dynamo/exc.py, get_gbid_documentation_link: how torch itself links an entry.
REGISTRY_PAGE = "https://meta-pytorch.github.io/compile-graph-break-site/gb/gb{number}.html"

SOURCE_PAGES = {
    "transformers": "https://github.com/huggingface/transformers/blob/v{version}/src/{file}#L{line}",
    "torch": "https://github.com/pytorch/pytorch/blob/v{version}/{file}#L{line}",
}
"""Pages of files at the tag of a release, by package; `file` begins with the package's name."""

RELEASE = re.compile(r"(\d+\.\d+\.\d+(?:\.post\d+)?)(?:\+(?:cpu|cu\d+|rocm[\d.]+|xpu))?")
"""A release with the build that PyTorch's index names, and nothing built from other source."""

MESSAGE_CHARACTERS = 120

FULLGRAPH_NOTE = (
    "fullgraph=True captures scalar outputs (`.item()`) that torch.compile does not capture by "
    "default, so a model may have graph breaks by default and yet be accepted with fullgraph=True."
)
"""Torch sets `allow_scalar_outputs=one_graph` (torch/_dynamo/output_graph.py)."""

CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class ResultGroup(StrEnum):
    """Status and phase together: an error before the compiler ran is no compile error."""

    COMPILE_ERROR = "compile_error"
    GRAPH_BREAK = "graph_break"
    MISMATCH = "mismatch"
    NO_VERDICT = "no_verdict"
    NOT_RUN = "not_run"
    PASS = "pass"
    FORECAST_FAIL = "forecast_fail"
    NO_FORECAST = "no_forecast"
    FORECAST_PASS = "forecast_pass"


FORECAST_GROUPS = {
    ResultGroup.FORECAST_PASS: "would lower",
    ResultGroup.FORECAST_FAIL: "would not",
    ResultGroup.NO_FORECAST: "no forecast",
}
"""Never in one share with the others; each with the heading of a column."""


OUTCOME_LABELS: dict[ResultGroup, str] = {
    ResultGroup.PASS: "pass",
    ResultGroup.GRAPH_BREAK: "graph break",
    ResultGroup.MISMATCH: "mismatch",
    ResultGroup.COMPILE_ERROR: "compile error",
    ResultGroup.NO_VERDICT: "no verdict",
    ResultGroup.NOT_RUN: "not run",
    ResultGroup.FORECAST_PASS: "forecast: lowers",
    ResultGroup.FORECAST_FAIL: "forecast: does not lower",
    ResultGroup.NO_FORECAST: "no forecast",
}
"""In the order in which columns and bars show them."""

OUTCOME_OF = (
    dict.fromkeys(records.Status, ResultGroup.NO_VERDICT)
    | {s: ResultGroup(s.value) for s in records.Status if s.value in set(ResultGroup)}
    | dict.fromkeys(records.NOT_RUN, ResultGroup.NOT_RUN)
)
"""The group of each status, but for an error of the compiler."""

OUTCOME_MEANINGS: dict[ResultGroup, str] = {
    ResultGroup.PASS: "no graph break; on Inductor, the compiled model computes what eager mode "
    "does",
    ResultGroup.GRAPH_BREAK: "runs, but as several graphs with eager Python between them",
    ResultGroup.MISMATCH: "compiles, but its outputs differ from those of eager mode",
    ResultGroup.COMPILE_ERROR: "the compiler raised an error",
    ResultGroup.NO_VERDICT: "the compiler gave no verdict: "
    "an error before compiling, a timeout, out of memory or a crash",
    ResultGroup.NOT_RUN: "skipped or unsupported; not run is not passed",
    ResultGroup.FORECAST_PASS: "no verdict: the public half of Neuron's compiler lowers each graph",
    ResultGroup.FORECAST_FAIL: "no verdict: the public half of Neuron's compiler rejects a graph",
    ResultGroup.NO_FORECAST: "an error, a timeout, out of memory or a crash before there was one",
}

TERMS: dict[str, str] = {
    "captured": "operators of one forward call that run inside captured graphs, of all that run.",
    "coverage": "requests with a verdict of the compiler, divided by planned requests.",
    "depth": "full is the number of layers in the configuration; reduced keeps one of each kind.",
    "downloads": "of the model on the Hugging Face Hub over 30 days, where the source knows them.",
    "fails first": "the first target, in the order from eager mode to Neuron, that fails.",
    "fingerprint": "identifies a break between runs by cause, file and function, not by its line.",
    "forecast": "what the public half of Neuron's compiler says without a device; not a verdict.",
    "fullgraph": "whether torch.compile(fullgraph=True) accepts the model.",
    "guards": "checks that Dynamo runs before each call to see whether the graph is still valid.",
    "harness": "version of the evaluation itself; results of another version are not reused.",
    "hit": "how often Dynamo met the break while the example inputs ran once.",
    "overhead": "wall-clock time times jobs, divided by the time spent in the models' phases.",
    "request": "one model on one target.",
    "tier": "fake tensors have shapes but no values, so that models of any size fit; "
    "real tensors are used where a model reads values.",
}
"""What a word of the pages means, where it needs saying."""

_SECONDS_FROM = 10.0
"""From here on, `milliseconds` says seconds."""


def outcome(result: records.Result | records.Earlier) -> ResultGroup:
    """The one group a result is counted in."""
    lost = isinstance(result, records.Result) and result.is_forecast and not result.is_conclusive
    if lost:
        return ResultGroup.NO_FORECAST
    if result.status is records.Status.ERROR and records.is_verdict(result.status, result.phase):
        return ResultGroup.COMPILE_ERROR
    return OUTCOME_OF[result.status]


def history_words(history: Sequence[records.Earlier]) -> str:
    """Since when the newest verdict of a history, oldest first, holds; runs without one are left.

    `Without graph breaks since RUN.`, `First broke in RUN.`, `First failed in RUN.`
    """
    judged = [earlier for earlier in history if records.is_verdict(earlier.status, earlier.phase)]
    if not judged:
        return "No stored run has a verdict."
    passes = judged[-1].status is records.Status.PASS
    first = judged[-1]
    for earlier in reversed(judged):
        if (earlier.status is records.Status.PASS) != passes:
            break
        first = earlier
    else:
        every = "Without graph breaks in every stored run with a verdict."
        return every if passes else "Never passed in a stored run."
    if passes:
        return f"Without graph breaks since {first.run}."
    broke = "broke" if first.status is records.Status.GRAPH_BREAK else "failed"
    return f"First {broke} in {first.run}."


PART_WORDS: dict[records.Part, str] = {
    records.Part.WHOLE: "whole",
    records.Part.COMPONENT: "component",
    records.Part.TRANSFORMERS: "Transformers part only",
    records.Part.BASE: "base model without the adapter, which needs peft: "
    "compilewatch env create libraries",
    records.Part.BASE_COMPONENT: "base pipeline without the adapter, component",
    records.Part.ORIGINAL: "class of Transformers for its original files",
    records.Part.PORT: "the same architecture in another library than its own",
}


def part_words(model: records.ModelSpec) -> str:
    """`whole`, `component unet`, `Transformers part only`; empty for a model of no repository."""
    if model.part is None:
        return ""
    return f"{PART_WORDS[model.part]} {model.component}".strip()


def quantization_words(model: records.ModelSpec) -> str:
    """`gptq, evaluated unquantised`; empty for a checkpoint whose weights are not quantised."""
    if model.quantization is None:
        return ""
    how = "evaluated unquantised" if model.is_dequantized else "evaluated with its weights"
    return f"{model.quantization.value}, {how}"


def status_words(result: records.Result | records.Earlier) -> str:
    """`pass`, `graph break`, `compile error`, `error in create`, `timeout in eager`, `skipped`."""
    kind = outcome(result)
    if kind in (ResultGroup.NO_VERDICT, ResultGroup.NO_FORECAST):
        return f"{result.status.value} in {result.phase.value}"
    if kind is ResultGroup.NOT_RUN:
        return result.status.value
    return OUTCOME_LABELS[kind]


def why(result: records.Result) -> tuple[str, ...]:
    """Causes in few words: titles of breaks, the message of an error, else what the result says."""
    if result.breaks and not result.is_forecast:
        return tuple(
            dict.fromkeys(
                records.reason_label(graph_break, short=True) for graph_break in result.breaks
            )
        )
    passes = outcome(result) in (ResultGroup.PASS, ResultGroup.FORECAST_PASS)
    cause = "" if passes else message(result) or result.detail
    return (cause,) if cause else ()


def message(result: records.Result) -> str:
    """The first line of an error's message, cut; before it a code that has a meaning of its own."""
    if result.error is None:
        return ""
    lines = result.error.message.strip().splitlines()
    text = lines[0] if lines else result.error.type
    if not result.error.code.islower():  # `NCC_EVRF009`, where `value_error` only names a class
        text = f"{result.error.code}: {text}"
    return text if len(text) <= MESSAGE_CHARACTERS else text[: MESSAGE_CHARACTERS - 1] + "…"


def tensor_words(result: records.Result) -> str:
    """`fake tensors`, `fake bfloat16 tensors on cuda (NVIDIA H100 80GB HBM3)`."""
    dtype = f"{result.dtype} " if result.dtype not in (None, records.Dtype.FLOAT32) else ""
    device = result.request.device
    name = result.request.target.device
    if device is not None and name == catalogue.CPU:  # a forecast's
        name = f"{device.kind}:{device.name}"
    where = f" on {name} ({device.product})" if device is not None else ""
    return f"{result.tier.value} {dtype}tensors{where}"


def attempt_words(attempt: records.Attempt) -> str:
    """`error in eager, fake unsupported: in eager, … aten._local_scalar_dense.default`."""
    code = attempt.code.value.replace("_", " ")
    return f"{attempt.status.value} in {attempt.phase.value}, {code}: {attempt.reason}"


def first_place(result: records.Result) -> str:
    """`modeling_longformer.py:1348 in _pad_to_window_size`: where it first breaks or fails."""
    breaks = result.missing_lowerings or result.breaks
    place = breaks[0] if breaks else result.error
    if place is None or not place.file:
        return "–"
    where = f"{place.file.rpartition('/')[2]}:{place.line}"
    return f"{where} in {place.function}" if place.function else where


def first_reason(result: records.Result) -> str:
    """Why, in one line; how many causes more there are."""
    if not result.breaks or result.is_forecast:
        return result.detail
    titles = why(result)
    return titles[0] + (f" (and {len(titles) - 1} more)" if len(titles) > 1 else "")


def captured_words(result: records.Result) -> str:
    """`99.8 % captured (933 of 935 operators)`; "" where operators were not counted."""
    capture = result.capture
    if capture is None or capture.operators_captured is None or capture.operators_eager is None:
        return ""
    every = capture.operators_captured + capture.operators_eager
    return (
        f"{percent(capture.share)} captured ({capture.operators_captured:,} of {every:,} operators)"
    )


def fullgraph_note(result: records.Result) -> str:
    """Why `fullgraph` and the graph breaks differ; "" where they do not."""
    accepted = result.fullgraph is not None and result.fullgraph.accepted
    return FULLGRAPH_NOTE if accepted and result.breaks else ""


def second_call_note(result: records.Result) -> str:
    """What the second call of the compiled model met beyond the first; "" if nothing."""
    second_call = result.second_call
    if second_call is None:
        return ""
    notes = []
    if second_call.graph_breaks:
        places = (
            f"{graph_break.code} at {graph_break.file}:{graph_break.line}"
            for graph_break in second_call.breaks
        )
        notes.append(f"{plural(second_call.graph_breaks, 'graph break')} ({', '.join(places)})")
    if again := sum(recompilation.call > 1 for recompilation in result.recompilations):
        notes.append(plural(again, "recompilation"))
    if second_call.error:
        notes.append(second_call.error)
    return f"second call, with equal inputs: {', '.join(notes)}"


RECOMPILATION_KINDS = {
    records.RecompilationKind.SIZE_0_OR_1: "size 0 or 1",
    records.RecompilationKind.FIRST_STATIC: "first seen as static",
    records.RecompilationKind.CONSTANT: "constant of the code",
    records.RecompilationKind.MODULO: "remainder of a size",
    records.RecompilationKind.BRANCH: "branch on a size",
    records.RecompilationKind.EQUAL_SIZES: "sizes that were equal",
    records.RecompilationKind.VALUE: "value across a graph break",
    records.RecompilationKind.ARGUMENT: "type or value of an argument",
    records.RecompilationKind.ATTRIBUTE: "attribute",
    records.RecompilationKind.OTHER: "another guard",
}


def compilations_words(result: records.Result, *, short: bool = False) -> str:
    """`5 as called, 3 dynamic, limit reached`; `5 / 3`, with `!` at the limit; "" without any."""
    traces = result.traces
    if not traces:
        return ""
    limit = any(figures.limit is not None for figures in traces.values())
    if short:
        counts = " / ".join(f"{figures.compilations:,}" for figures in traces.values())
        return counts + (" !" if limit else "")
    names = {"default": "as called", "true": "with dynamic=True"}
    counts = ", ".join(f"{one.compilations:,} {names[name]}" for name, one in traces.items())
    return counts + (", recompilation limit reached" if limit else "")


REMEDIES = {
    records.RecompilationKind.SIZE_0_OR_1: "torch compiles 0 and 1 apart: pad, or accept it",
    records.RecompilationKind.FIRST_STATIC: "mark it with torch._dynamo.mark_dynamic, or compile "
    "with dynamic=True",
    records.RecompilationKind.CONSTANT: "keep the number out of this line",
    records.RecompilationKind.MODULO: "pad to a multiple, or leave the check out",
    records.RecompilationKind.BRANCH: "compute without the branch, or accept both of its sides",
    records.RecompilationKind.EQUAL_SIZES: "call first with sizes that differ",
    records.RecompilationKind.VALUE: "remove the graph break before it",
    records.RecompilationKind.ARGUMENT: "pass the same type, rank and dtype in each call",
    records.RecompilationKind.ATTRIBUTE: "do not change it in a call",
}
"""What a recompilation is removed by, by its kind."""


def recompilation_cause(recompilation: records.Recompilation) -> str:
    """The kind, what it is about, and the line of the model that needs it."""
    cause = f"{RECOMPILATION_KINDS[recompilation.kind]} {recompilation.subject}".rstrip()
    if (line := recompilation.needed_by) is not None:
        cause += f", {line.file}:{line.line}: {line.text}".rstrip(": ")  # of a statement's head
    return cause


def recompilation_lines(
    recompilations: Iterable[records.Recompilation],
) -> Iterator[tuple[str, str]]:
    """Each cause of recompilations: `calls 2, 3`, and the kind, the subject and the line.

    Without a line of the model that needs it, the function, and the guard that failed.
    """
    calls: dict[str, dict[int, None]] = {}
    for again in recompilations:
        cause = recompilation_cause(again)
        if again.needed_by is None:
            guard = again.guards[0].partition(": ")[2]
            cause += f", {again.file}:{again.line} in {again.function}: {guard}"
        calls.setdefault(cause, {})[again.call] = None
    for cause, numbers in calls.items():
        word = "call" if len(numbers) == 1 else "calls"
        yield f"{word} {', '.join(map(str, numbers))}", cause


def registry_page(code: str) -> str | None:
    """The page of PyTorch's graph break site for `GB0170`; None for a code of ours."""
    number = code.removeprefix("GB")
    return REGISTRY_PAGE.format(number=number) if number != code and number.isdigit() else None


def source_page(
    file: str | None, line: int | None, environment: records.Environment | None
) -> str | None:
    """The page of a line on GitHub at the release that ran it; None for other code or versions."""
    package = (file or "").partition("/")[0]
    if environment is None or package not in SOURCE_PAGES or not line:
        return None
    version = environment.torch if package == "torch" else environment.transformers
    release = RELEASE.fullmatch(version or "")
    if release is None:
        return None
    return SOURCE_PAGES[package].format(version=release[1], file=file, line=line)


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


def plural(count: int, noun: str, several: str = "") -> str:
    """`1 family`, `1,204 families`."""
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"


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


def milliseconds(duration: float | None) -> str:
    """`0.081 ms`, `12.4 ms`, `1,250 ms`, `22.4 s`."""
    if duration is None:
        return "–"
    if duration >= _SECONDS_FROM:
        return f"{duration:,.1f} s"
    value = duration * 1e3
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 1000 else 0
    return f"{value:,.{digits}f} ms"


def memory(size: int | None) -> str:
    """`9 KiB`, `512 MiB`, `1.3 GiB`."""
    if size is None:
        return "–"
    if size < 2**20:
        return f"{size / 2**10:.0f} KiB"
    return f"{size / 2**20:.0f} MiB" if size < 2**30 else f"{size / 2**30:.1f} GiB"


OTHER_OUTCOMES: dict[ResultGroup, tuple[str, str]] = {
    ResultGroup.GRAPH_BREAK: ("with graph breaks", "with graph breaks"),
    ResultGroup.MISMATCH: ("mismatch", "mismatches"),
    ResultGroup.COMPILE_ERROR: ("compile error", "compile errors"),
    ResultGroup.NO_VERDICT: ("error", "errors"),
    ResultGroup.NOT_RUN: ("not run", "not run"),
}
"""What the headline calls one and several results that are no pass."""

CHANGE_LABELS = {kind: kind.value.replace("_", " ").capitalize() for kind in records.ChangeKind} | {
    records.ChangeKind.REGRESSION: "Regressions",
    records.ChangeKind.MORE_COMPILATIONS: "Compile more often",
    records.ChangeKind.GONE: "Removed",
}


def headline(view: records.RunView) -> str:
    """`1 of 19 models compiles without graph breaks (5.3 %); 18 errors`.

    Of all that was planned: what failed, was skipped or is missing is named behind it. With
    several targets or modes the unit is a request, a model on a target. On a target that does not
    count graph breaks, a model only passes. Forecasts come last, with a total of their own.
    """
    total, passed = summary.planned_verdicts(view), summary.summarise(view).passed
    forecast = {r.request.target for r in view.results if r.is_forecast}
    all_targets = {*(r.request.target for r in view.results), *view.run.targets} - forecast
    unit = "model" if len(set(map(catalogue.target_label, all_targets))) <= 1 else "request"
    names = {target.name for target in all_targets}
    counted = all(
        name not in catalogue.TARGETS or catalogue.TARGETS[name].counts_graph_breaks
        for name in names
    )
    singular = 1 in (passed, total)
    verb = "passes" if singular else "pass"
    if counted:
        verb = f"{'compiles' if singular else 'compile'} without graph breaks"
    if total != 1:
        unit += "s"
    counts = Counter(outcome(result) for result in view.results)
    others = [
        plural(counts[kind], *labels) for kind, labels in OTHER_OUTCOMES.items() if counts[kind]
    ]
    if missing := summary.planned(view) - len(view.results):
        others.append(f"{missing:,} without a result")
    share = percent(summary.passed_share(view))
    passing = f"{passed:,} of {total:,} {unit} {verb} ({share})"
    parts = [passing, *others] if total or not forecast else others
    return "; ".join([*parts, *filter(None, [forecast_words(counts)])])


def forecast_words(counts: Mapping[ResultGroup, int]) -> str:
    """`forecast, no verdict: 45 of 50 lower, 4 do not`; empty where there is no forecast."""
    lower, fail, none = (counts.get(kind, 0) for kind in FORECAST_GROUPS)
    total = lower + fail + none
    words = f"forecast, no verdict: {lower:,} of {total:,} lower, {fail:,} do not"
    return words + (f", {none:,} without one" if none else "") if total else ""


def repository_words(view: records.RunView) -> str:
    """`repositories: 20 of 25 with a verdict on each evaluated part (whole 15 of 15, …)`.

    Empty without any.
    """
    by_part = summary.repositories(view)
    if not by_part:
        return ""
    covered, total, partly = (sum(numbers) for numbers in zip(*by_part.values(), strict=True))
    skipped = f", {partly:,} of them with skipped parts" if partly else ""
    parts = ", ".join(
        f"{part or 'nothing can be built'} {numbers[0]:,} of {numbers[1]:,}"
        for part, numbers in by_part.items()
    )
    counted = f"repositories: {covered:,} of {total:,}"
    return f"{counted} with a verdict on each evaluated part{skipped} ({parts})"


def cell_words(cell: Cell) -> str:
    """`pass`, `compile error`; of eager mode with the target that met the failure."""
    if cell.result is None:
        return OUTCOME_LABELS[ResultGroup.PASS]
    words = status_words(cell.result)
    target = cell.result.request.target
    return words if target.name == cell.layer else f"{words} ({catalogue.target_label(target)})"


_RANKED = {
    By.OPERATOR: ("an operator", "operators", " without a lowering"),
    By.COMPILATIONS: ("a line", "lines", " that needs another compilation for other sizes"),
}
"""What models have in a table of what to fix first, unless it is a graph break."""


def leverage_headline(ranking: Leverage) -> str:
    """`13 models have graph breaks on dynamo, 3.4 M downloads a month`."""
    one, several, which = _RANKED.get(ranking.by, ("a graph break", "graph breaks", ""))
    if not ranking.broken:
        return f"No model has {one}{which}: there is nothing to fix."
    verb = "has" if ranking.broken == 1 else "have"
    causes = several + which.replace("needs", "need")
    sentence = f"{plural(ranking.broken, 'model')} {verb} {causes} on {', '.join(ranking.targets)}"
    if ranking.downloads is None:
        return sentence
    return f"{sentence}, {quantity(ranking.downloads)} downloads a month"


def gain(fix: LeverageStep) -> str:
    """`12` where the step gives them by itself, `+4` where it needs the steps before it."""
    return f"{len(fix.models):,}" if fix.exact else f"+{len(fix.models):,}"


def leverage_notes(ranking: Leverage) -> tuple[str, ...]:
    """What the columns of the table of fixes mean, and what the table leaves out."""
    unit, after = {
        By.LINE: ("break in this function", "have no graph break any more"),
        By.ID: ("break for this reason", "have no graph break any more"),
        By.OPERATOR: ("have this operator", "lower completely"),
        By.COMPILATIONS: ("compile again for this line", "have no such line any more"),
    }[ranking.by]
    notes = [
        f"Models: {after} after this step; with +, only together with the steps above.",
        f"At most: models that {unit} at all, and would need other fixes too.",
    ]
    if ranking.unknown:
        notes.append(
            f"{plural(ranking.unknown, 'model')} cannot be ranked, because not all causes of their "
            "breaks are known."
        )
    if rest := ranking.left - ranking.unknown:
        notes.append(f"{plural(rest, 'model')} would need steps that are not listed.")
    return tuple(notes)


def step_fix_words(fix: StepFix | None) -> str:
    """`capture_scalar_outputs=True (12 of 41 models)`; a dash where nothing is verified."""
    if fix is None:
        return "–"
    changes = " and ".join(fix.changes)
    return f"{changes} ({fix.verified:,} of {plural(fix.affected, 'model')})"


def verified_total_words(verified: VerifiedTotal) -> str:
    """What the verified fixes of a run are worth together, in two sentences."""
    if not verified.models:
        sentences = "No fix of a single graph is verified for any of these models."
    else:
        these = "this change leaves" if len(verified.changes) == 1 else "these changes leave"
        these = these.replace("these", f"these {len(verified.changes):,}")
        gained = f"{plural(len(verified.models), 'more model')} without graph breaks"
        if verified.downloads is not None:
            gained += f", {quantity(verified.downloads)} downloads a month"
        sentences = f"Verified: {these} {gained}; each of them is verified by a script of its own."
    if verified.improved:
        verb = "has" if verified.improved == 1 else "have"
        sentences += (
            f" {plural(verified.improved, 'model')} {verb} a verification of fewer graph breaks."
        )
    return sentences


def compile_trace(paths: Iterable[str]) -> str | None:
    """The pages that tlparse made of the compile trace, packed."""
    return next((path for path in paths if path.endswith("/tlparse.zip")), None)


def decompressing(result: records.Result) -> str:
    """What to type for the artifacts as plain files; "" where none is compressed."""
    if not any(path.endswith((".zst", "/tlparse.zip")) for path in result.artifacts):
        return ""
    name = shlex.quote(result.request.model.name)
    return f"compilewatch show {name} --artifacts DIRECTORY"


def repeat_commands(request: records.Request) -> tuple[str, str, str]:
    """What to type to reproduce a result: plain PyTorch, explained, and the same request anew."""
    name = shlex.quote(request.model.name)
    sweep = f"compilewatch sweep --source {request.model.source} --models {name}"
    if request.target.name != "dynamo":
        sweep += f" --targets {request.target.name}"
    if request.target.mode is not records.Mode.EVAL:
        sweep += f" --modes {request.target.mode.value}"
    sweep += {None: "", True: " --dynamic", False: " --static"}[request.target.dynamic]
    nested = {None: "", True: " --nested-graph-breaks on", False: " --nested-graph-breaks off"}[
        request.target.nested_graph_breaks
    ]
    sweep += nested
    sweep += catalogue.environment_option(request).replace("--environment", "--environments")
    device = ""
    if request.target.device != catalogue.CPU:
        device += f" --device {request.target.device}"
    if request.target.dtype is not catalogue.default_dtype(request.target.device):
        device += f" --dtype {request.target.dtype.value}"
    if request.depth is not records.Depth.FULL:
        sweep += f" --depth {request.depth.value}"
    target = "" if request.target.name == "dynamo" else f" --target {request.target.name}"
    where = catalogue.naming_options(request) + catalogue.inputs_option(request)
    return (
        f"compilewatch reproduce {name}{device}{where}{nested}",
        f"compilewatch explain {name}{target}{device}{where}{nested}",
        f"{sweep}{device} --fresh",
    )
