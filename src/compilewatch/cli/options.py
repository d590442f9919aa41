"""Options and steps that several verbs share."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from compilewatch.cli import completion
from compilewatch.cli.worker_call import check_backends, check_nested_graph_breaks
from compilewatch.config.paths import Places
from compilewatch.config.settings import Settings, load_settings
from compilewatch.environments import Environments
from compilewatch.errors import InputsError, UnknownModelError, UsageError
from compilewatch.plan.placement import place, possible
from compilewatch.plan.requests import check_targets, options_of, plan, targets_of
from compilewatch.records import (
    Depth,
    Dtype,
    Environment,
    FactoryBuild,
    Mode,
    ModelSpec,
    Request,
    Target,
    Tier,
    Variants,
)
from compilewatch.sources.loading import choose_source, other_sources, with_parts
from compilewatch.sources.own import with_inputs
from compilewatch.sources.select import select

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
output = click.option(
    "--output", "output_dir", metavar="DIR", help="The folder of stored runs (outputs)."
)
source = click.option(
    "--source",
    metavar="NAME",
    help="auto, library (Transformers), another library (timm, torchvision, diffusers, "
    "sentence-transformers, open_clip), all-libraries, hub, manifest, papers (default auto).",
)
fresh = click.option(
    "--fresh", is_flag=True, help="Check the environments again, even if they have not changed."
)
verbose = click.option("--verbose", is_flag=True, help="Show complete tracebacks.")
depth = click.option(
    "--depth",
    type=click.Choice([d.value for d in Depth]),
    help="full: as many layers as in the configuration; reduced: one of each kind of layer.",
)
tier = click.option(
    "--tier",
    type=click.Choice([t.value for t in Tier]),
    help="auto: fake tensors, or real tensors if a model reads values; fake; real.",
)
dtype = click.option(
    "--dtype",
    type=click.Choice([d.value for d in Dtype]),
    help="The type of weights and inputs (default: float32 on a CPU, config on a GPU, which is "
    "what the configuration says).",
)
variants = click.option(
    "--variants",
    type=click.Choice([v.value for v in Variants]),
    help="Inputs of models of several media, on Dynamo. main: all media at once; all (default): "
    "also text alone, and text with each medium; all+decode: also one token with a cache.",
)
dynamic = click.option("--dynamic", is_flag=True, default=None, help="Compile with dynamic shapes.")


nested_graph_breaks = click.option(
    "--nested-graph-breaks",
    type=click.Choice(["on", "off", "default"]),
    help="Dynamo's setting: also compile functions that a graph break interrupts "
    "(default: as PyTorch has it).",
)


def one_request_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say how a single model is evaluated."""
    decorators: Sequence[Decorator] = (
        click.argument("model", shell_complete=completion.models),
        source,
        click.option(
            "--target",
            default="dynamo",
            show_default=True,
            shell_complete=completion.targets,
            help="The compile target.",
        ),
        click.option(
            "--mode",
            type=click.Choice([m.value for m in Mode]),
            default=Mode.EVAL.value,
            show_default=True,
        ),
        dynamic,
        click.option(
            "--device",
            metavar="NAME",
            help="cpu, or a declared device, which need not be present: cuda, cuda:A100 …",
        ),
        dtype,
        depth,
        variants,
        tier,
        click.option(
            "--environment",
            "environments",
            metavar="NAME",
            help="The environment to run in (default: the target's default environment).",
        ),
        click.option(
            "--inputs",
            "inputs_file",
            type=click.Path(dir_okay=False),
            help="Example inputs: a file, .toml (see `inputs --save`) or .safetensors, or for your "
            "own model MODULE:FUNCTION, which returns them.",
        ),
        click.option(
            "--python-path",
            metavar="DIR",
            multiple=True,
            type=click.Path(file_okay=False, path_type=Path),
            help="Search this folder first for your own module; may be given several times.",
        ),
    )
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def split(text: str | None) -> list[str] | None:
    """The parts of an option such as `A,B`; None for an option that was not given."""
    if text is None:
        return None
    return [part.strip() for part in text.split(",") if part.strip()]


def environments_for(targets: Iterable[str], settings: Settings) -> tuple[str, ...]:
    """The names of the environments that a command needs.

    Default environments are left out if they do not exist. Raises InterpreterError if an
    environment was named and does not exist.
    """
    names = possible(targets, settings.environments, settings.devices)
    environments = Environments(settings.cache_folder)
    if settings.environments:
        for name in names:
            environments.interpreter(name)
        return names
    there = environments.available()
    return tuple(name for name in names if name in there)


def described(targets: Iterable[str], settings: Settings) -> tuple[Environment, ...]:
    """The descriptions of the environments that a command needs. Raises InterpreterError."""
    names = environments_for(targets, settings)
    environments = Environments(settings.cache_folder)
    return tuple(environments.describe(name) for name in names)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which models of a source: these names, these families, the `top` most used ones or `every`.

    Without any of them, those that the settings name.
    """

    names: Sequence[str] | None = None
    top: int | None = None
    every: bool = False
    families: Sequence[str] | None = None

    def stored(self) -> dict[str, Any]:
        """The selection as `run.json` has it: runs with equal ones are compared by default."""
        return {
            "top": self.top,
            "all": self.every,
            "names": self.names,
            "families": self.families,
        }


def choose_models(
    settings: Settings,
    selection: Selection,
    *,
    python_path: Sequence[Path] = (),
    environment: str | None = None,
) -> tuple[tuple[ModelSpec, ...], str]:
    """The models that the settings and the selection name, and a sentence about their source.

    Sources read the Transformers of `environment` (default: the one that runs compilewatch).
    """
    environments = Environments(settings.cache_folder)
    root = environments.transformers_folder(environment) if environment else None
    places = Places(
        pulled=Path(settings.pulled_dir) / "models.toml",
        manifest=Path(settings.models_file),
        popularity=Path(settings.popularity_file),
        library_popularity=Path(settings.popularity_file).with_name("library_popularity.csv"),
        cache=settings.cache_folder,
        transformers=root,
        environment=environment or "",
        outputs=Path(settings.output_dir),
    )
    chosen, sentence = choose_source(settings.source, heads=settings.heads, places=places)
    top, names = selection.top, with_parts(selection.names, places)
    if names is None and selection.families is None and not selection.every:
        # All models of a team's own list are selected; of thousands, only the most used ones.
        top = top or (None if chosen.name in ("manifest", "chaos", "papers") else settings.top)
    others = other_sources(places) if names is not None else ()
    specs = select(
        chosen.models,
        top=top,
        names=names,
        families=selection.families,
        all=selection.every,
        others=others,
        python_path=python_path,
        transformers=root,
    )
    return specs, sentence


def one_model(
    settings: Settings,
    name: str,
    *,
    python_path: Sequence[Path] = (),
    environment: str | None = None,
) -> ModelSpec:
    """The only model with this name. Raises UsageError for a repository with several components."""
    specs, _ = choose_models(
        settings, Selection(names=[name]), python_path=python_path, environment=environment
    )
    if len(specs) > 1:
        named = ", ".join(spec.name for spec in specs)
        raise UsageError(
            f"{name} has {len(specs)} components, which are models: name one of {named}"
        )
    return specs[0]


class Chosen(NamedTuple):
    """The models of a sweep: those of the first environment, then what only others have.

    `own` has the models of each environment that was named; `lines` say where they come from.
    """

    specs: tuple[ModelSpec, ...]
    own: dict[str, tuple[ModelSpec, ...]]
    lines: tuple[str, ...]


def choose_for_sweep(settings: Settings, selection: Selection) -> Chosen:
    """The models of each environment that the settings name, from its own Transformers.

    An environment that lacks a model or family that another one has is not evaluated for it.
    Raises UnknownModelError if no environment has it.
    """
    there = Environments(settings.cache_folder).available()
    # A cluster may have environments that do not exist here.
    asked = tuple(name for name in settings.environments if name in there)
    if not asked:
        specs, sentence = choose_models(settings, selection)
        return Chosen(specs, {}, (sentence,))
    own: dict[str, tuple[ModelSpec, ...]] = {}
    lines: list[str] = []
    unknown: dict[str, UnknownModelError] = {}
    known: set[str] = set()
    for environment in asked:
        left = selection
        while True:
            try:
                own[environment], sentence = choose_models(settings, left, environment=environment)
                lines.append(f"{environment}: {sentence}")
            except UnknownModelError as error:
                unknown[error.name] = error
                left = _without(left, error.name)
                lines.append(f"{environment}: no {error.name}")
                if left.names or left.families:
                    continue
                own[environment] = ()
            break
        known |= {*(left.names or ()), *(left.families or ())}
    for name, nowhere in unknown.items():
        if name not in known:
            raise nowhere
    union = {spec.name: spec for models in own.values() for spec in models}
    return Chosen(tuple(union.values()), own, tuple(lines))


def _without(selection: Selection, name: str) -> Selection:
    """The selection without a model or family of this name."""

    def left(names: Sequence[str] | None) -> Sequence[str] | None:
        return [each for each in names if each != name] if names else None

    return replace(selection, names=left(selection.names), families=left(selection.families))


def one_target(name: str, *, mode: str, dynamic: bool | None, settings: Settings) -> Target:
    """The target of a command about one target and one device.

    Raises UsageError for an unknown target, or for several devices.
    """
    if len(settings.devices) > 1:
        raise UsageError("this command is about one device: name one with --device")
    (target,) = targets_of(
        [name],
        [Mode(mode)],
        bool(dynamic),
        settings.nested_graph_breaks,
        devices=settings.devices,
        dtype=settings.named_dtype,
    )
    check_targets([target])
    return target


def one_request(
    model: str,
    *,
    target: str,
    mode: str,
    dynamic: bool | None,
    inputs_file: str | None,
    flags: dict[str, Any],
) -> tuple[Request, Settings]:
    """The request of a command about one model. `flags` override settings.

    Errors in the choice of the model or in a file of inputs are raised here, before a worker
    starts.
    """
    folders = tuple(flags.pop("python_path", ()))
    if missing := [folder for folder in folders if not folder.is_dir()]:
        raise UsageError(f"--python-path: the folder {missing[0]} does not exist")
    flags["devices"] = split(flags.pop("device", None))
    settings = load_settings(flags | {"environments": split(flags.get("environments"))})
    targets = [one_target(target, mode=mode, dynamic=dynamic, settings=settings)]
    spec = _one_spec(model, settings, folders)
    known = described([target.partition(":")[0]], settings)
    planned = options_of(settings, known)
    if inputs_file is not None and _names_callable(inputs_file):
        spec = with_inputs(spec, inputs_file, _packages_of(settings))
    elif inputs_file is not None:
        _check_inputs(Path(inputs_file))
        given = str(Path(inputs_file).absolute())
        spec = msgspec.structs.replace(spec, inputs_file=given)
        planned = msgspec.structs.replace(planned, inputs_file=given)
    check_backends(targets, settings)
    check_nested_graph_breaks(targets, settings, asked=flags.get("nested_graph_breaks"))
    placed = place(targets, settings.environments, known)
    if len(placed) > 1:
        raise UsageError("this command uses one environment: name one with --environment")
    made = plan([spec], placed, planned, named=bool(settings.environments))
    if made.skipped:
        raise UsageError(f"{spec.name} is not run: {made.skipped[0].detail}")
    return made.requests[0], settings


def _names_callable(inputs: str) -> bool:
    return ":" in inputs and not Path(inputs).exists()


def _packages_of(settings: Settings) -> Path | None:
    """The folder of Transformers in the only environment that was named, None without one."""
    if len(settings.environments) != 1:
        return None
    return Environments(settings.cache_folder).transformers_folder(settings.environments[0])


def _one_spec(model: str, settings: Settings, folders: Sequence[Path]) -> ModelSpec:
    """The model of a command about one model. Raises UsageError if it cannot run here."""
    asked = settings.environments[0] if len(settings.environments) == 1 else None
    spec = one_model(settings, model, python_path=folders, environment=asked)
    if spec.source == "papers":
        raise UsageError(
            f"{spec.name} is generated code, which only runs in the sandbox: use `compilewatch "
            "sweep --source papers`, `compilewatch papers check` or `compilewatch papers show`"
        )
    if folders and not isinstance(spec.build, FactoryBuild):
        raise UsageError("--python-path applies to your own models: ./FILE.py or MODULE:FACTORY")
    return spec


def _check_inputs(path: Path) -> None:
    """Raises InputsError if the file is missing, of another type, or not valid TOML."""
    if path.suffix not in (".toml", ".safetensors"):
        raise InputsError(f"{path}: a file of inputs must be a .toml or .safetensors file")
    try:
        data = path.read_bytes()
        if path.suffix == ".toml":
            tomllib.loads(data.decode())
    except OSError as error:
        raise InputsError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputsError(f"{path}: not a valid file of inputs: {error}") from None


def show_creation(line: str) -> None:
    """Say that an environment is created: the first line of what `environments.creation` shows."""
    if line.startswith("Creating"):
        click.echo(click.style(line, dim=True), err=True)


def print_json(value: Any) -> None:
    """Print one JSON document to standard output."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))
