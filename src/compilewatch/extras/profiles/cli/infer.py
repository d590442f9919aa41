"""`compilewatch profile infer`: how fast models run on each target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from compilewatch import plugins
from compilewatch.api.requests import one_request
from compilewatch.api.selection import split
from compilewatch.cli import completion, options
from compilewatch.config.settings import Settings, load_settings
from compilewatch.environments import Environments
from compilewatch.errors import MissingExtraError, SinkError, UsageError
from compilewatch.extras.profiles.cli.tables import ProfileProgress, profile_panel
from compilewatch.extras.profiles.infer.measurement import (
    Job,
    canonical,
    check_targets,
    profile_model,
)
from compilewatch.extras.profiles.infer.records import InferenceOptions, InferenceProfile
from compilewatch.extras.profiles.infer.servers import Profilers
from compilewatch.extras.profiles.infer.store import PREFIX, ProfileFolder
from compilewatch.records import ConfigBuild, Depth, Status, Tier
from compilewatch.records.clock import new_run_id
from compilewatch.report.terminal.pieces import console, plain
from compilewatch.sources.labelled import LabelledTexts, read_labelled

INCOMPLETE = 3
DEVICES = ("cpu", "cuda")
DTYPES = ("float32", "bfloat16", "float16")
DEFAULTS = InferenceOptions()


@click.command("infer")
@click.argument(
    "models", metavar="MODEL...", nargs=-1, required=True, shell_complete=completion.models
)
@click.option(
    "--targets",
    default="eager,inductor",
    show_default=True,
    metavar="A,B",
    help="eager, inductor and xla, measured in turns; inductor@torch-2.13 names an environment.",
)
@click.option(
    "--batch-sizes",
    default=",".join(map(str, DEFAULTS.batch_sizes)),
    show_default=True,
    metavar="N,N",
)
@click.option(
    "--device",
    type=click.Choice(DEVICES),
    default=DEFAULTS.device,
    show_default=True,
    help="cuda: the first GPU of this machine, on which nothing was measured so far.",
)
@click.option("--dtype", type=click.Choice(DTYPES), default=DEFAULTS.dtype, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=DEFAULTS.threads, show_default=True)
@click.option(
    "--max-length",
    type=click.IntRange(min=1),
    default=DEFAULTS.max_length,
    show_default=True,
    help="Tokens of a text.",
)
@click.option(
    "--size",
    type=click.Choice(("full", "reduced")),
    default=DEFAULTS.size,
    show_default=True,
    help="full: as configured; reduced: one of each kind of layer, at most 64 million parameters.",
)
@click.option("--warmup", type=click.IntRange(min=0), default=DEFAULTS.warmup, show_default=True)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=DEFAULTS.runs,
    show_default=True,
    help="Calls in each round.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=DEFAULTS.rounds,
    show_default=True,
    help="Rounds of each target; fewer than 8 are too few for claims.",
)
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=DEFAULTS.max_seconds,
    show_default=True,
    help="Measure a batch size for about so long; three rounds are always measured.",
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
def command(
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
    **measured: Any,
) -> int:
    """Measure latency, throughput and memory of each MODEL, and what its graph breaks cost.

    MODEL is what `explain` takes. Models run one after another, with real tensors. Each
    profile is stored in a folder of its own, with tables, pictures and a report. The exit status
    is 3 if a batch size could not be measured.
    """
    chosen = InferenceOptions(
        targets=tuple(split(targets) or ()), batch_sizes=_sizes(batch_sizes), **measured
    )
    check_targets(chosen.targets, chosen.device)
    chosen = msgspec.structs.replace(chosen, targets=tuple(map(canonical, chosen.targets)))
    texts = _texts(data, text_column, label_column, label_mappings)
    settings = load_settings({"output_dir": output_dir})
    jobs = [
        _job(name, chosen, texts, source, inputs_file, python_path, trace=trace) for name in models
    ]
    root = Path(settings.output_dir).absolute()
    found: list[InferenceProfile] = []
    environments = Environments(settings.cache_folder)
    with Profilers(chosen.targets, environments, chosen.device) as profilers:
        for job in jobs:
            name = PREFIX + new_run_id()
            folder = ProfileFolder(root / name)
            with ProfileProgress(job.request.model.name) as progress:
                stored = profile_model(job, profilers, folder, progress.on_step, name)
            found.append(stored.profile)
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
        options.print_json(found[0] if len(found) == 1 else found)
    return 0 if all(map(_is_complete, found)) else INCOMPLETE


def _publish(settings: Settings, profile: InferenceProfile) -> str:
    """Send a profile to the Pushgateway if one is set; a failure costs a line, not the profile."""
    if not settings.pushgateway.url:
        return ""
    try:
        push_profile = plugins.load("compilewatch.extras.profiles.infer.publication:push_profile")
        return str(push_profile(settings, profile))
    except (MissingExtraError, SinkError) as error:
        click.echo(f"compilewatch: pushgateway was not published to: {error}", err=True)
        return ""


def _job(
    name: str,
    chosen: InferenceOptions,
    texts: LabelledTexts | None,
    source: str | None,
    inputs_file: str | None,
    python_path: tuple[Path, ...],
    *,
    trace: bool,
) -> Job:
    request, _ = one_request(
        name,
        target="dynamo",
        mode="eval",
        dynamic=None,
        inputs_file=inputs_file,
        flags={
            "tier": Tier.REAL.value,
            "depth": Depth.FULL.value if chosen.size == "full" else Depth.REDUCED.value,
            "source": source,
            "python_path": python_path,
        },
    )
    build = request.model.build
    if texts is not None:
        if not isinstance(build, ConfigBuild):
            raise UsageError(
                f"{request.model.name} has no weights: --data needs a folder with weights and a "
                "tokenizer, or a model of the Hub"
            )
        where = build.repo or str(Path(build.config_file).parent)
        build = msgspec.structs.replace(build, weights=True, repo=where)
        model = msgspec.structs.replace(request.model, build=build)
        request = msgspec.structs.replace(request, model=model)
    return Job(request=request, options=chosen, trace=trace, data=texts)


def _texts(
    data: Path | None, text_column: str, label_column: str, mappings: Path | None
) -> LabelledTexts | None:
    if data is None:
        if mappings is not None:
            raise UsageError("--label-mappings needs --data")
        return None
    return read_labelled(data, text_column, label_column, mappings)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in split(text) or ())
    except ValueError:
        raise UsageError(f"--batch-sizes takes numbers such as 1,8,64, not {text!r}") from None
    if not sizes or min(sizes) < 1 or len(set(sizes)) != len(sizes):
        raise UsageError("--batch-sizes takes different numbers from 1, such as 1,8,64")
    return tuple(sorted(sizes))


def _is_complete(profile: InferenceProfile) -> bool:
    return all(p.status is Status.PASS for target in profile.targets for p in target.points)
