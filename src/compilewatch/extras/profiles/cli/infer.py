"""`compilewatch profile infer` and `profile compare`: how fast models run on each target."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from compilewatch import plugins
from compilewatch.api.choose import one_request, split
from compilewatch.cli import completion, options
from compilewatch.cli.conditions import FOUND, INCOMPLETE
from compilewatch.cli.options import Decorator
from compilewatch.cli.progress import SECONDS_BETWEEN_LINES
from compilewatch.config import Settings, load_settings
from compilewatch.environments import Environments
from compilewatch.errors import MissingExtraError, SinkError, UsageError
from compilewatch.extras.profiles import analysis, measurement, records, report, subjects
from compilewatch.extras.profiles.labelled import read_labelled
from compilewatch.extras.profiles.metrics import push_profile
from compilewatch.extras.profiles.records import Verdict
from compilewatch.extras.profiles.store import PREFIX, ProfileFolder, open_profile
from compilewatch.extras.profiles.subjects import Profilers
from compilewatch.records import ConfigBuild, Depth, Request, Status, Tier, new_run_id
from compilewatch.report.terminal import console, plain, spaced, table
from compilewatch.report.wording import milliseconds

DEFAULTS = records.InferenceOptions()

BREAKS_SHOWN = 8

VERDICT_STYLES = {Verdict.SLOWER: "red", Verdict.FASTER: "green", Verdict.UNCLEAR: "dim"}


def _option(name: str, kind: click.ParamType[Any], text: str | None = None) -> Decorator:
    """An option for a field of `InferenceOptions`, with its default."""
    flag, default = f"--{name.replace('_', '-')}", getattr(DEFAULTS, name)
    return click.option(flag, type=kind, default=default, show_default=True, help=text)


@click.command("infer")
@click.argument(
    "models", metavar="MODEL...", nargs=-1, required=True, shell_complete=completion.models
)
@click.option(
    "--targets",
    default="eager,inductor",
    show_default=True,
    metavar="A,B",
    help="eager, inductor and xla, measured alternately; inductor@torch-2.13 names an environment.",
)
@click.option(
    "--batch-sizes",
    default=",".join(map(str, DEFAULTS.batch_sizes)),
    show_default=True,
    metavar="N,N",
)
@_option(
    "device",
    click.Choice(("cpu", "cuda")),
    "cuda: the first GPU of this machine, on which nothing was measured so far.",
)
@_option("dtype", click.Choice(("float32", "bfloat16", "float16")))
@_option("threads", click.IntRange(min=1))
@_option("max_length", click.IntRange(min=1), "Tokens of a text.")
@_option(
    "size",
    click.Choice(("full", "reduced")),
    "full: as configured; reduced: one of each kind of layer, at most 64 million parameters.",
)
@_option("warmup", click.IntRange(min=0))
@_option("runs", click.IntRange(min=1), "Calls in each round.")
@_option(
    "rounds",
    click.IntRange(min=1),
    "Rounds of each target; fewer than 8 are too few for claims.",
)
@_option(
    "max_seconds",
    click.FloatRange(min=0, min_open=True),
    "Measure a batch size for about so long; three rounds are always measured.",
)
@click.option("--trace", is_flag=True, help="Also write a Chrome trace, stacks and op_stats.csv.")
@click.option(
    "--data",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.csv",
    help="Labelled texts: also measure the accuracy of a text classifier, with its real weights.",
)
@click.option("--text-column", default="text", show_default=True, metavar="NAME")
@click.option("--label-column", default="label", show_default=True, metavar="NAME")
@click.option(
    "--label-mappings",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.json",
    help="The class of each label: {name: class} or {class: name}.",
)
@options.source
@options.inputs
@options.python_path
@options.output
@options.as_json
def infer_command(
    *,
    models: tuple[str, ...],
    targets: str,
    batch_sizes: str,
    data: Path | None,
    text_column: str,
    label_column: str,
    label_mappings: Path | None,
    trace: bool,
    inputs_file: str | None,
    python_path: tuple[Path, ...],
    source: str | None,
    output_dir: str | None,
    as_json: bool,
    **fields: Any,
) -> int:
    """Measure latency, throughput and memory of each MODEL, and what its graph breaks cost.

    MODEL is what `explain` takes. Models run one after another, with real tensors. Each
    profile is stored in a folder of its own, with tables, pictures and a report. The exit status
    is 3 if a batch size could not be measured.
    """
    names = split(targets) or []
    subjects.check_targets(names, fields["device"])
    chosen = records.InferenceOptions(
        targets=tuple(map(subjects.canonical, names)), batch_sizes=_sizes(batch_sizes), **fields
    )
    if data is None and label_mappings is not None:
        raise UsageError("--label-mappings needs --data")
    texts = read_labelled(data, text_column, label_column, label_mappings) if data else None
    settings = load_settings({"output_dir": output_dir})
    flags = {
        "tier": Tier.REAL.value,
        "depth": Depth.FULL.value if chosen.size == "full" else Depth.REDUCED.value,
        "source": source,
        "python_path": python_path,
    }
    weights = data is not None
    requests = [_request(name, inputs_file, flags, with_weights=weights) for name in models]
    root = Path(settings.output_dir).absolute()
    profiles: list[records.InferenceProfile] = []
    environments = Environments(settings.cache_folder)
    with Profilers(chosen.targets, environments, chosen.device) as profilers:
        for request in requests:
            name = PREFIX + new_run_id()
            folder = ProfileFolder(root / name)
            with ProfileProgress(request.model.name) as progress:
                inference = measurement.Inference(
                    request, chosen, profilers, folder, progress.on_step, trace=trace, data=texts
                )
                stored = measurement.profile_model(inference, name)
            profiles.append(stored.profile)
            published = _publish(settings, stored.profile)
            if not as_json:
                out = console()
                out.print(profile_panel(stored.profile))
                out.print()
                out.print(plain(f"Profile: {stored.folder}"))
                out.print(plain(f"Report: {stored.folder / 'report.html'}"))
                if published:
                    out.print(plain(published))
    if as_json:
        options.print_json(profiles[0] if len(profiles) == 1 else profiles)
    points = (point for profile in profiles for _, point in profile.points())
    return 0 if all(point.status is Status.PASS for point in points) else INCOMPLETE


def _publish(settings: Settings, profile: records.InferenceProfile) -> str:
    """Send a profile to the Pushgateway if one is set; a failure costs a line, not the profile."""
    if not settings.pushgateway.url:
        return ""
    try:
        gateway = plugins.load("compilewatch.sinks.pushgateway:Gateway")
        return push_profile(gateway(settings), profile)
    except (MissingExtraError, SinkError) as error:
        click.echo(f"compilewatch: pushgateway was not published to: {error}", err=True)
        return ""


def _request(
    name: str, inputs_file: str | None, flags: dict[str, Any], *, with_weights: bool
) -> Request:
    request, _ = one_request(
        name, target="dynamo", mode="eval", dynamic=None, inputs_file=inputs_file, flags=flags
    )
    build = request.model.build
    if not with_weights:
        return request
    if not isinstance(build, ConfigBuild):
        raise UsageError(
            f"{request.model.name} has no weights: --data needs a folder with weights and a "
            "tokenizer, or a model of the Hub"
        )
    where = build.repo or str(Path(build.config_file).parent)
    build = msgspec.structs.replace(build, weights=True, repo=where)
    model = msgspec.structs.replace(request.model, build=build)
    return msgspec.structs.replace(request, model=model)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in split(text) or ())
    except ValueError:
        raise UsageError(f"--batch-sizes takes numbers such as 1,8,64, not {text!r}") from None
    if not sizes or min(sizes) < 1 or len(set(sizes)) != len(sizes):
        raise UsageError("--batch-sizes takes different numbers from 1, such as 1,8,64")
    return tuple(sorted(sizes))


@click.command("compare")
@click.argument("before")
@click.argument("after", default="latest")
@click.option("--model", metavar="NAME", help="The model, where a folder has profiles of several.")
@click.option(
    "--fail-on",
    type=click.Choice(("slower",)),
    help="Exit with status 1 if a target is slower at any batch size, beyond noise.",
)
@options.output
@options.as_json
def compare_command(
    *,
    before: str,
    after: str,
    model: str | None,
    fail_on: str | None,
    output_dir: str | None,
    as_json: bool,
) -> int:
    """Say which of two profiles of a model is faster: BEFORE, or AFTER (the latest by default).

    A profile is named by its id or the beginning of it, by its folder, or by `latest`. "Slower" is
    claimed only beyond noise: by rank sums of the rounds (p < 0.01) and for at least 7 %. Exit
    statuses: 0 compared; 1 a condition of --fail-on is met; 2 wrong input; 3 nothing could be
    compared, such as profiles of different machines.
    """
    root = Path(load_settings({"output_dir": output_dir}).output_dir).absolute()
    old = open_profile(root, before, model)
    new = open_profile(root, after, model or old.profile.model)
    comparison = analysis.compare_profiles(old.measured(), new.measured())
    options.show(comparison, as_json, comparison_table(comparison))
    verdicts = {point.judgement.verdict for point in comparison.points}
    if comparison.obstacle or verdicts <= {Verdict.UNCLEAR}:
        return INCOMPLETE
    if fail_on == "slower" and (slower := comparison.of(Verdict.SLOWER)):
        names = ", ".join(f"{p.target} at batch {p.batch_size}" for p in slower)
        click.echo(f"compilewatch: --fail-on: slower: {names}", err=True)
        return FOUND
    return 0


def profile_panel(profile: records.InferenceProfile) -> RenderableType:
    """Everything about one profile."""
    facts = "\n".join(f"{name:<9} {value}" for name, value in report.facts(profile))
    first, *figures, last = report.POINT_HEADINGS
    headings = (first, *(f">{name}" for name in figures), last)
    best = analysis.fastest(profile)
    styles = ["bold" if best == pair else "" for pair in profile.points()]
    points = (
        (*((cell, style) for cell in cells), (remark, f"{style} yellow"))
        for style, (*cells, remark) in zip(styles, report.point_rows(profile), strict=True)
    )
    answers = Text()
    for name, value in report.answers(profile):
        answers.append(f"{name}: ", style="bold")
        answers.append_text(plain(f"{value}\n"))
    for note in profile.notes:
        answers.append_text(plain(f"note: {note}\n", "yellow"))
    answers.rstrip()
    return spaced([plain(facts), table(headings, points, gap=2), *_breaks(profile), answers])


def _breaks(profile: records.InferenceProfile) -> Iterator[RenderableType]:
    """The costs of graph breaks at the first batch size that has them."""
    if (broken := analysis.broken(profile)) is None:
        return
    target, point = broken
    rows = [
        (cost.code, f"{cost.file}:{cost.line} in {cost.function}", report.break_cost_words(cost))
        for cost in point.breaks[:BREAKS_SHOWN]
    ]
    if len(point.breaks) > BREAKS_SHOWN:
        rows.append(("", f"and {len(point.breaks) - BREAKS_SHOWN} more", ""))
    costs = f"Costs in a call of {target.target} at batch {point.batch_size}"
    yield table(("Graph break", "Where", costs), rows)


def comparison_table(comparison: records.ProfileComparison) -> RenderableType:
    """What changed between two profiles, and what may be the cause."""
    heading = f"{comparison.model}: {comparison.before} -> {comparison.after}"
    parts: list[RenderableType] = [plain(heading)]
    if comparison.obstacle:
        parts.append(plain(f"not compared: {comparison.obstacle}", "yellow"))
    elif comparison.points:
        before = f">Before ({comparison.points[0].measure})"
        changes = (">After", ">Change", ">Against eager", ">Memory")
        headings = ("Target", ">Batch", before, *changes, "Verdict")
        parts.append(table(headings, _comparison_rows(comparison), gap=2))
    different = "; ".join(comparison.differences)
    same = "The software and the machine are the same."
    parts.append(plain(f"Also different: {different}" if different else same))
    return spaced(parts)


def _comparison_rows(
    comparison: records.ProfileComparison,
) -> Iterator[tuple[str | tuple[str, str], ...]]:
    def change(ratio: float | None) -> str:
        return f"{ratio - 1:+.1%}" if ratio else "–"

    for point in comparison.points:
        judged = point.judgement
        before, after = point.memory_before_bytes, point.memory_after_bytes
        verdict = judged.verdict.value + (f": {judged.reason}" if judged.reason else "")
        yield (
            point.target,
            str(point.batch_size),
            milliseconds(point.before_seconds),
            milliseconds(point.after_seconds),
            change(judged.ratio),
            change(point.relative),
            change(after / before if before and after else None),
            (verdict, VERDICT_STYLES.get(judged.verdict, "")),
        )


class ProfileProgress(Progress):
    """Shows a bar on a terminal and lines elsewhere; on standard error."""

    def __init__(self, model: str) -> None:
        out = console(stderr=True)
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            console=out,
            transient=True,
            disable=not out.is_terminal,
        )
        self._model = model
        self._task = self.add_task(model, total=1.0)
        self._printed = 0.0

    def on_step(self, what: str, done: float) -> None:
        step = f"{self._model}: {what}"
        self.update(self._task, description=step, completed=done)
        now = time.monotonic()
        if not self.console.is_terminal and now - self._printed >= SECONDS_BETWEEN_LINES:
            self._printed = now
            self.console.print(plain(f"{done:4.0%} {step}"))
