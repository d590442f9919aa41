"""`compilewatch profile train`, `profile check` and `profile neuron`: steps of trainings.

Models train each on each target in a child of its own, one after the other.
"""

import io
import math
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from compilewatch.api.choose import call_worker, local_launcher, one_request, split
from compilewatch.cli import completion, options
from compilewatch.cli.conditions import INCOMPLETE
from compilewatch.cli.progress import spinner
from compilewatch.config import Settings, load_settings
from compilewatch.environments import Environments
from compilewatch.errors import CompilerError, InputsError, StoreError, UsageError
from compilewatch.extras.profiles import check
from compilewatch.extras.profiles import training as analysis
from compilewatch.extras.profiles.training import Stage, TrainingProfile
from compilewatch.files import safe_name, write_atomically
from compilewatch.neuron import profiler
from compilewatch.records import Depth, Mode, Request, Result, Status, Tier, Work, new_run_id
from compilewatch.report.terminal import console, plain, table
from compilewatch.report.wording import memory, milliseconds, plural

EAGER, XLA = "eager", "xla"

SAME_LOSS = 1e-3
"""Relative difference of the losses of the first steps up to which a speed-up is stated."""

COMPARED_STEPS = 3

TARGETS = (EAGER, "inductor")

T = TypeVar("T")

SHOWN = (Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER)

MODES = ("device", "runtime", "cpu-util", "host-memory")
"""Neuron's ProfileMode, in lower case."""


Trained = tuple[dict[str, Any], TrainingProfile | None]
"""What `--json` prints of one model on one target, and its profile if there is one.

There is no speed-up unless the losses match those of eager mode.
"""


def training_request(request: Request, target: str, out: Path, options: dict[str, Any]) -> Request:
    """Return the request that trains instead of evaluating; `target` may be `eager`.

    `options` are arguments of `worker.training.train`; the profile is written below `out`.
    """
    folder = out / safe_name(request.model.name) / target
    work = Work(name="train", options={"out": str(folder), "compiled": target != EAGER} | options)
    return msgspec.structs.replace(
        request,
        target=msgspec.structs.replace(request.target, mode=Mode.TRAIN),
        key=f"train-{safe_name(request.model.name)}-{target}",
        tier=Tier.REAL,
        depth=request.depth or Depth.FULL,
        keep_artifacts=False,
        work=work,
    )


def trained(
    requests: Sequence[tuple[str, Request]], run: Callable[[str, Request], Result]
) -> Iterator[Trained]:
    """Run the requests, given with their targets, and yield what was measured of each."""
    eager: dict[str, TrainingProfile] = {}
    for target, request in requests:
        result = run(target, request)
        passed, model = result.status is Status.PASS, request.model.name
        detail = result.detail + ("" if passed else f" (in {result.phase})")
        profile, same, speedup = None, None, None
        assert request.work is not None
        try:
            for folder in check.find_training(Path(request.work.options["out"]))[:1]:
                profile = check.read_training(folder)
        except StoreError as error:
            detail = str(error)
        if profile is not None and passed and target == EAGER:
            eager[model] = profile
        elif profile is not None and passed and model in eager:
            same, speedup = compared(profile, eager[model])
        yield (
            {
                "model": model,
                "target": target,
                "status": result.status,
                "detail": detail,
                "speedup": speedup,
                "same_losses": same,
                "metrics": profile and profile.metrics,
                "findings": analysis.findings(profile) if profile is not None else (),
                "folder": profile and str(profile.path),
            },
            profile,
        )


def compared(trained: TrainingProfile, eager: TrainingProfile) -> tuple[bool, float | None]:
    """Whether the first losses are those of eager mode, and the speed-up over it if they are."""
    losses = ([s.loss for s in profile.steps[:COMPARED_STEPS]] for profile in (eager, trained))
    pairs = list(zip(*losses, strict=False))
    same = bool(pairs) and all(
        a is not None and b is not None and math.isclose(a, b, rel_tol=SAME_LOSS) for a, b in pairs
    )
    old, new = (profile.times.step for profile in (eager, trained))
    return same, old.median / new.median if same and old and new else None


def _alone(settings: Settings, verb: str, request: Request, kind: type[T]) -> T:
    """Train for a profile in an interpreter of its own, which no server has warmed up.

    Raises InputsError with the message of a failure, and if it does not end within the deadline of
    all phases.
    """
    try:
        return call_worker(Environments(settings.cache_folder), verb, request, kind)
    except subprocess.TimeoutExpired:
        seconds = request.deadlines.total_seconds
        raise InputsError(
            f"{request.model.name}: the training did not end within {seconds:g} s: raise "
            "deadlines.total_seconds or train fewer steps"
        ) from None


@click.command("train")
@click.argument(
    "models", metavar="MODEL...", nargs=-1, required=True, shell_complete=completion.models
)
@options.source
@click.option(
    "--target",
    "targets",
    metavar="A,B",
    default=",".join(TARGETS),
    show_default=True,
    help="Some of eager, inductor, inductor:BACKEND and xla, in this order.",
)
@click.option("--steps", type=click.IntRange(min=1), default=20, show_default=True)
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Steps at the beginning that averages leave out.",
)
@click.option(
    "--trace-steps",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Steps after them that torch.profiler records; averages leave them out, too.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    help="Samples of a step (default: those of the example inputs).",
)
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=1),
    help="End a training after this time (default: deadlines.profile_seconds).",
)
@options.depth
@options.output
@options.as_json
def train_command(
    *,
    models: tuple[str, ...],
    targets: str,
    steps: int,
    warmup: int,
    trace_steps: int,
    batch_size: int | None,
    max_seconds: float | None,
    output_dir: str | None,
    as_json: bool,
    **flags: Any,
) -> int:
    """Train each MODEL for some steps on its example inputs, and measure the stages of each step.

    Each target trains in a separate process with the same seed: weights of reduced size, one
    batch, AdamW. The profiles are written to outputs/profiles; `compilewatch profile check` reads
    them. A speed-up is stated only if the losses are those of eager mode. The exit status is 3 if a
    training did not end.
    """
    chosen = split(targets) or []
    for name in chosen:
        if name not in (EAGER, XLA) and name.partition(":")[0] != "inductor":
            raise UsageError(
                f"cannot train on {name!r}; known: eager, inductor, inductor:BACKEND, xla"
            )
    flags |= {"jobs": 1, "output_dir": output_dir}
    settings = load_settings({"output_dir": output_dir})
    out = Path(settings.output_dir).absolute() / "profiles" / new_run_id()
    training = {
        "steps": steps,
        "warm_up": warmup,
        "trace_steps": trace_steps,
        "batch_size": batch_size,
    }
    prepared = []
    for model, target in product(models, chosen):
        request, settings = one_request(
            model,
            target="inductor" if target == EAGER else target,
            mode=Mode.TRAIN.value,
            dynamic=None,
            inputs_file=None,
            flags=flags,
        )
        if max_seconds is not None:
            limits = msgspec.structs.replace(request.deadlines, profile_seconds=max_seconds)
            request = msgspec.structs.replace(request, deadlines=limits)
        prepared.append((target, training_request(request, target, out, training)))
    names = tuple(dict.fromkeys(r.target.environment for t, r in prepared if t != XLA))
    with (
        tempfile.TemporaryDirectory(prefix="compilewatch-") as scratch,
        local_launcher(settings, names) as launcher,
        spinner(f"training {', '.join(models)}", launcher),
    ):

        def run(target: str, request: Request) -> Result:
            if target == XLA:  # a warm server's child cannot run it
                return _alone(settings, "train", request, Result)
            (completed,) = launcher.run([request], Path(scratch))
            return completed.result

        done = list(trained(prepared, run))
    options.show([fields for fields, _ in done], as_json, lambda: _show_trained(done, out))
    return 0 if all(fields["status"] is Status.PASS for fields, _ in done) else INCOMPLETE


def _show_trained(done: Sequence[Trained], out: Path) -> None:
    figures = (">first step", ">step", *(f">{stage}" for stage in SHOWN), ">memory", ">speed-up")
    rows = ((fields["model"], fields["target"], *_cells(fields, p)) for fields, p in done)
    printer = console()
    printer.print(table(("model", "target", *figures), rows, gap=2))
    for fields, _ in done:
        passed = fields["status"] is Status.PASS
        lines = [] if passed else [f"{fields['status']}: {fields['detail']}"]
        if fields["same_losses"] is False:
            lines.append("its losses differ from those of eager mode")
        lines += [f"{finding.code}: {finding.found}" for finding in fields["findings"]]
        for line in lines:
            printer.print(plain(f"{fields['model']} on {fields['target']}: {line}"))
    printer.print(plain(f"Next: compilewatch profile check {out} --analysis"))


def _cells(fields: dict[str, Any], profile: TrainingProfile | None) -> Iterator[str]:
    if profile is None or profile.times.step is None:
        return
    yield milliseconds(profile.metrics.first_step_seconds)
    yield milliseconds(profile.times.step.median)
    for stage in SHOWN:
        spread = profile.times.stages.get(stage)
        yield milliseconds(spread.median if spread is not None else None)
    yield memory(profile.metrics.peak_resident_bytes)
    yield f"{fields['speedup']:.2f} ×" if fields["speedup"] is not None else "–"


STATUS_STYLES = ("green", "yellow", "red")


@click.command("check")
@click.argument("folder", metavar="DIR", required=False, type=click.Path(path_type=Path))
@options.output
@click.option(
    "--analysis", "explained", is_flag=True, help="Explain what dominates, by stage and operator."
)
@click.option("--report", is_flag=True, help="Write check_report.md into each profile's folder.")
@options.as_json
def check_command(
    *, folder: Path | None, output_dir: str | None, explained: bool, report: bool, as_json: bool
) -> int:
    """Validate the profiles in DIR, or all in outputs/, of training and of inference.

    Each file is read completely: damaged lines, files that contradict each other and traces that no
    viewer would open are found. The exit status is 0 if nothing was found, 1 if there are findings
    (also for a profile that is incomplete or still being written), 2 if a profile is broken.
    """
    root = folder or Path(load_settings({"output_dir": output_dir}).output_dir)
    if folder is not None and not folder.is_dir():
        raise UsageError(f"there is no folder {folder}")
    folders = [root] if folder else [root / "profiles", *sorted(root.glob("profile-*"))]
    profiles = check.check_profiles(*folders)
    if not profiles:
        missing = "no steps.jsonl and no baseline_metrics.json"
        hint = missing if folder else "`compilewatch profile train` makes one"
        raise UsageError(f"{root} contains no profile: {hint}")
    if as_json:
        options.print_json([_check_json(profile, explained) for profile in profiles])
    else:
        for profile in profiles:
            console().print(Group(*_check_lines(profile, explained)))
    if report:
        for profile in profiles:
            click.echo(f"Saved: {_write_report(profile).absolute()}", err=True)
    return max(profile.exit_status for profile in profiles)


def _check_lines(checked: check.CheckedProfile, explained: bool) -> Iterator[RenderableType]:
    style = STATUS_STYLES[checked.exit_status]
    head = Text.assemble(plain(str(checked.path)), ": ", (checked.state, style))
    if checked.broken is not None:
        yield head
        yield plain(f"  {checked.broken}")
        return
    training = checked.training
    size = f"training, {plural(len(training.steps), 'step')}" if training else "inference"
    yield Text.assemble(head, f", {size}, {plural(len(checked.findings), 'finding')}")
    for finding in checked.findings:
        yield plain(f"  {finding.code}: {finding.found}")
        yield plain(f"    {finding.advice}")
    if explained and training is not None:
        for sentence in analysis.explanation(training):
            yield plain(f"  {sentence}")
        shares = training.times.shares
        stages = [
            (stage, *map(milliseconds, (s.median, s.minimum, s.maximum)), f"{shares[stage]:.1%}")
            for stage, s in training.times.stages.items()
        ]
        operators = [
            (
                o.name,
                str(o.calls),
                milliseconds(o.self_cpu_time_us / 1e6),
                milliseconds(o.cpu_time_total_us / 1e6),
            )
            for o in analysis.top_operators(training)
        ]
        if stages:
            yield table(("stage", ">median", ">min", ">max", ">share"), stages, gap=2)
        if operators:
            yield table(("operator", ">calls", ">own CPU time", ">CPU time"), operators, gap=2)


def _write_report(checked: check.CheckedProfile) -> Path:
    """Write what a check says into the folder of the profile."""
    text, path = io.StringIO(), checked.path / "check_report.md"
    console(text).print(Group(*_check_lines(checked, explained=True)))
    content = f"# Check of {checked.path.name}\n\n```\n{text.getvalue()}```\n"
    write_atomically(path, content.encode(), durable=False)
    return path


def _check_json(checked: check.CheckedProfile, explained: bool) -> dict[str, Any]:
    names = ("kind", "state", "exit_status", "broken", "findings")
    fields = {"path": str(checked.path)} | {name: getattr(checked, name) for name in names}
    if (training := checked.training) is not None:
        fields["metrics"] = training.metrics
        if explained:
            fields["explanation"] = tuple(analysis.explanation(training))
            fields["shares"] = training.times.shares
            fields["operators"] = analysis.top_operators(training)
    return fields


# --- the Neuron SDK -------------------------------------------------------------------------------


@click.group("neuron")
def neuron_group() -> None:
    """Capture, view and summarise profiles with the tools of the Neuron SDK.

    It needs an instance with Neuron devices. So far it has run with mocks of the SDK only.
    """


@neuron_group.command("capture")
@click.argument("what", metavar="MODEL|FILE.neff")
@options.source
@click.option(
    "--environment",
    "environments",
    metavar="NAME",
    help="The environment with torch_neuronx (default: neuron).",
)
@options.depth
@click.option(
    "--collect",
    "modes",
    type=click.Choice(MODES),
    multiple=True,
    default=MODES[:2],
    show_default=True,
    help="What to record; device takes about 5 GB of the device's memory.",
)
@click.option("--steps", type=click.IntRange(min=1), default=10, show_default=True)
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("neuron-profile"),
    show_default=True,
    help="The folder for the session of a model.",
)
@options.as_json
def capture_command(
    *,
    what: str,
    modes: tuple[str, ...],
    steps: int,
    folder: Path,
    as_json: bool,
    **flags: Any,
) -> None:
    """Record training steps of MODEL on a NeuronCore, or one run of a compiled FILE.neff.

    A model is compiled by TorchNeuron and trained in the named blocks model_build, loss_backward
    and optimizer_step. A NEFF runs with zeros, and FILE.ntff is written beside it.
    """
    if what.endswith(profiler.NEFF_SUFFIX):
        neff = Path(what)
        if not neff.is_file():
            raise CompilerError(f"there is no file {neff}")
        ntff = neff.with_suffix(profiler.NTFF_SUFFIX)
        with spinner(f"{profiler.PROGRAM} captures {neff}"):
            profiler.capture(neff, ntff)
        result: Any = {"tool": profiler.PROGRAM, "neff": str(neff), "ntff": str(ntff)}
        text = f"{ntff}\nNext: compilewatch profile neuron summarize {ntff}"
    else:
        request, settings = one_request(
            what,
            target="neuron",
            mode=Mode.TRAIN.value,
            dynamic=None,
            inputs_file=None,
            flags=flags,
        )
        work = {"steps": steps, "folder": str(folder.absolute())}
        work |= {"modes": [mode.upper().replace("-", "_") for mode in modes]}
        request = msgspec.structs.replace(
            request, tier=Tier.REAL, work=Work(name="neuron-profile", options=work)
        )
        with spinner(f"profiling {request.model.name}"):
            files = _alone(settings, "neuron-profile", request, tuple[str, ...])
        paths = map(Path, files)
        session = next(folder / path.parent for path in paths if profiler.is_of_session(path))
        result = {"steps": steps, "files": files}
        text = (
            f"{plural(steps, 'step')}, {plural(len(files), 'file')} in {folder}\n"
            f"Next: compilewatch profile neuron summarize {session}"
        )
    options.show(result, as_json, text)


_place = click.argument(
    "place", metavar="SESSION|FILE.ntff", type=click.Path(exists=True, path_type=Path)
)


@neuron_group.command("view")
@_place
@click.option(
    "--format",
    "output_format",
    type=click.Choice(profiler.FORMATS),
    default="perfetto",
    show_default=True,
)
@click.option(
    "--output-file", type=click.Path(dir_okay=False, path_type=Path), help="Write it to this file."
)
def view_command(*, place: Path, output_format: str, output_file: Path | None) -> None:
    """Convert a captured profile, for Perfetto by default (ui.perfetto.dev opens the file)."""
    if output_file is None and output_format == "perfetto":
        output_file = Path("profile.pftrace")
    with spinner(f"{profiler.PROGRAM} converts {place}"):
        text = profiler.view(place, output_format=output_format, output_file=output_file)
    click.echo(f"Saved: {output_file.absolute()}" if output_file is not None else text.rstrip())


@neuron_group.command("summarize")
@_place
@options.as_json
def summarize_command(*, place: Path, as_json: bool) -> None:
    """Print the figures of a captured profile: time, utilisation, spilled bytes."""
    if place.is_dir() and (empty := profiler.empty_files(place)):
        raise CompilerError(f"{empty[0]} is empty: nothing was captured")
    with spinner(f"{profiler.PROGRAM} summarises {place}"):
        figures = profiler.parse_summary(profiler.view(place, output_format="summary-json"))
    rows = (
        (name, f"{value:,.6g}" if isinstance(value, float) else str(value))
        for name, value in figures.items()
    )
    summary = {"tool": profiler.PROGRAM, "summary": figures}
    options.show(summary, as_json, table(("figure", "value"), rows, gap=2))
