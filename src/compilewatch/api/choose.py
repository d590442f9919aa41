"""What a command is about, from settings and names: models, environments, targets, one request.

Also the launchers that settings name, and the calls of a worker that are not requests.
"""

import contextlib
import re
import shutil
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from compilewatch import errors, extras, plan, plugins, records
from compilewatch.config import Places, Settings, load_settings
from compilewatch.contract.messages import Readiness
from compilewatch.contract.targets import TARGETS, entry
from compilewatch.environments import Environments, Interpreter, answer, last_line, oneshot
from compilewatch.files import temporary_folder
from compilewatch.launchers import LAUNCHERS, Launcher
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.sources import choose_source, other_sources, with_parts
from compilewatch.sources.select import select

T = TypeVar("T")

CHECK_SECONDS = 300.0
"""Long enough for imports from a cold disk."""

_FOR_TORCHS_TESTS = re.compile("TESTING_ONLY|minifier")


def split(text: str | None) -> list[str] | None:
    """The parts of an option such as `A,B`; None for an option that was not given."""
    if text is None:
        return None
    return [part.strip() for part in text.split(",") if part.strip()]


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
        return {"top": self.top, "all": self.every, "names": self.names, "families": self.families}


def choose_models(
    settings: Settings,
    selection: Selection,
    *,
    python_path: Sequence[Path] = (),
    environment: str | None = None,
) -> tuple[tuple[records.ModelSpec, ...], str]:
    """The models that the settings and the selection name, and a sentence about their source.

    Sources read the Transformers of `environment` (default: the one that runs compilewatch).
    """
    environments = Environments(settings.cache_folder)
    root = environments.transformers_folder(environment) if environment else None
    places = Places(settings=settings, transformers=root, environment=environment or "")
    chosen, sentence = choose_source(settings.source, places)
    top, names = selection.top, with_parts(selection.names, places)
    if names is None and selection.families is None and not selection.every:
        # All models of a team's own list are selected; of thousands, only the most used ones.
        top = top or (None if chosen.name in ("manifest", *extras.SANDBOXED) else settings.top)
    others = other_sources(places, settings.source) if names is not None else ()
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
) -> records.ModelSpec:
    """The only model with this name. Raises UsageError for a repository with several components."""
    specs, _ = choose_models(
        settings, Selection(names=[name]), python_path=python_path, environment=environment
    )
    if len(specs) > 1:
        named = ", ".join(spec.name for spec in specs)
        raise errors.UsageError(
            f"{name} has {len(specs)} components, which are models: name one of {named}"
        )
    return specs[0]


class ModelSelection(NamedTuple):
    """The models of a sweep: those of the first environment, then what only others have.

    `own` has the models of each environment that was named; `lines` say where they come from.
    """

    specs: tuple[records.ModelSpec, ...]
    own: dict[str, tuple[records.ModelSpec, ...]]
    lines: tuple[str, ...]


def choose_for_sweep(settings: Settings, selection: Selection) -> ModelSelection:
    """The models of each environment that the settings name, from its own Transformers.

    An environment that lacks a model or family that another one has is not evaluated for it.
    Raises UnknownModelError if no environment has it.
    """
    there = Environments(settings.cache_folder).available()
    # A cluster may have environments that do not exist here.
    asked = tuple(name for name in settings.environments if name in there)
    if not asked:
        specs, sentence = choose_models(settings, selection)
        return ModelSelection(specs, {}, (sentence,))
    own: dict[str, tuple[records.ModelSpec, ...]] = {}
    lines: list[str] = []
    unknown: dict[str, errors.UnknownModelError] = {}
    known: set[str] = set()
    for environment in asked:
        left = selection
        while True:
            try:
                own[environment], sentence = choose_models(settings, left, environment=environment)
                lines.append(f"{environment}: {sentence}")
            except errors.UnknownModelError as error:
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
    return ModelSelection(tuple(union.values()), own, tuple(lines))


def _without(selection: Selection, name: str) -> Selection:
    """The selection without a model or family of this name."""

    def left(names: Sequence[str] | None) -> Sequence[str] | None:
        return [other for other in names if other != name] if names else None

    return replace(selection, names=left(selection.names), families=left(selection.families))


def environments_for(targets: Iterable[str], settings: Settings) -> tuple[str, ...]:
    """The names of the environments that a command needs.

    Default environments are left out if they do not exist. Raises InterpreterError if an
    environment was named and does not exist.
    """
    names = plan.possible_environments(targets, settings.environments, settings.devices)
    environments = Environments(settings.cache_folder)
    if settings.environments:
        for name in names:
            environments.interpreter(name)
        return names
    available = environments.available()
    return tuple(name for name in names if name in available)


def described(targets: Iterable[str], settings: Settings) -> tuple[records.Environment, ...]:
    """The descriptions of the environments that a command needs. Raises InterpreterError."""
    names = environments_for(targets, settings)
    environments = Environments(settings.cache_folder)
    return tuple(environments.describe(name) for name in names)


def check_backends(targets: Iterable[records.Target], settings: Settings) -> None:
    """Raises UsageError for a backend that the targets' environments do not have."""
    environments = Environments(settings.cache_folder)
    for target in targets:
        if target.backend is None or entry(target.name).backends is not None:
            continue
        for name in plan.environments_of_targets([target.name], settings.environments):
            known = readiness(environments, name).backends
            if target.backend not in known:
                meant = (backend for backend in known if not _FOR_TORCHS_TESTS.search(backend))
                raise errors.UsageError(
                    f"{target.name} has no backend {target.backend!r} in environment {name!r}; "
                    f"known: {', '.join(meant)}"
                )


def check_nested_graph_breaks(
    targets: Sequence[records.Target], settings: Settings, *, asked: str | None
) -> None:
    """Raises UsageError where the setting `nested_graph_breaks` cannot be applied.

    That is if it is asked for on the command line and no target has it, or if it is on and a torch
    does not know it. A torch without it does what `off` means.
    """
    if asked in ("on", "off") and all(t.nested_graph_breaks is None for t in targets):
        able = " or ".join(name for name, row in TARGETS.items() if row.nested_graph_breaks)
        raise errors.UsageError(
            f"--nested-graph-breaks is a setting of the target {able}: name it too"
        )
    local = settings.launcher == "local"  # the nodes of a cluster know what they have
    if not local or not any(target.nested_graph_breaks for target in targets):
        return
    environments = Environments(settings.cache_folder)
    for name in plan.environments_of_targets(
        [t.name for t in targets if t.nested_graph_breaks], settings.environments
    ):
        if not readiness(environments, name).nested_graph_breaks:
            raise errors.UsageError(
                f"the torch of environment {name!r} has no setting nested_graph_breaks: "
                "leave out --nested-graph-breaks on"
            )


def targets_with(
    settings: Settings, names: Iterable[str], modes: Iterable[records.Mode], dynamic: bool | None
) -> tuple[records.Target, ...]:
    """These targets in these modes, on the devices and with the type that the settings name."""
    nested, devices = settings.nested_graph_breaks, settings.devices
    dtype = None if settings.dtype == "default" else records.Dtype(settings.dtype)
    return plan.targets_of(names, modes, dynamic, nested, devices=devices, dtype=dtype)


def checked_targets(
    settings: Settings, nested_asked: str | None, *, resumed: bool = False
) -> tuple[records.Target, ...]:
    """The targets that the settings name. Raises UsageError where a new run cannot have them.

    `nested_asked` is the value of `nested_graph_breaks` if it was given. A run that is `resumed`
    has its own targets, so nothing is checked.
    """
    targets = targets_with(settings, settings.all_targets, settings.modes, settings.chosen_dynamic)
    if resumed:
        return targets
    if settings.launcher == "local":
        plan.check_targets(targets)
        check_backends(targets, settings)
    check_nested_graph_breaks(targets, settings, asked=nested_asked)
    return targets


def one_target(name: str, *, mode: str, dynamic: bool | None, settings: Settings) -> records.Target:
    """The target of a command about one target and one device.

    Raises UsageError for an unknown target, or for several devices.
    """
    if len(settings.devices) > 1:
        raise errors.UsageError("this command is about one device: name one with --device")
    (target,) = targets_with(settings, [name], [records.Mode(mode)], dynamic)
    plan.check_targets([target])
    return target


def one_request(
    model: str,
    *,
    target: str,
    mode: str,
    dynamic: bool | None,
    inputs_file: str | None,
    flags: dict[str, Any],
) -> tuple[records.Request, Settings]:
    """The request of a command about one model. `flags` override settings.

    Errors in the choice of the model or in a file of inputs are raised here, before a worker
    starts.
    """
    folders = tuple(flags.pop("python_path", ()))
    if missing := [folder for folder in folders if not folder.is_dir()]:
        raise errors.UsageError(f"--python-path: the folder {missing[0]} does not exist")
    flags["devices"] = split(flags.pop("device", None))
    settings = load_settings(flags | {"environments": split(flags.get("environments"))})
    targets = [one_target(target, mode=mode, dynamic=dynamic, settings=settings)]
    named = settings.environments[0] if len(settings.environments) == 1 else None
    spec = one_model(settings, model, python_path=folders, environment=named)
    if spec.source in extras.SANDBOXED:
        raise errors.UsageError(
            f"{spec.name} is generated code, which only runs in the sandbox: use `compilewatch "
            "sweep --source papers`, `compilewatch papers check` or `compilewatch papers show`"
        )
    if folders and not isinstance(spec.build, records.FactoryBuild):
        raise errors.UsageError(
            "--python-path applies to your own models: ./FILE.py or MODULE:FACTORY"
        )
    known = described([target.partition(":")[0]], settings)
    if inputs_file is not None and ":" in inputs_file and not Path(inputs_file).exists():
        from compilewatch.sources.own import with_inputs

        environments = Environments(settings.cache_folder)
        packages = environments.transformers_folder(named) if named is not None else None
        spec = with_inputs(spec, inputs_file, packages)
    elif inputs_file is not None:
        _check_inputs(Path(inputs_file))
        path = str(Path(inputs_file).absolute())
        spec = msgspec.structs.replace(spec, inputs_file=path)
    check_backends(targets, settings)
    check_nested_graph_breaks(targets, settings, asked=flags.get("nested_graph_breaks"))
    placed = plan.place(targets, settings.environments, known)
    if len(placed) > 1:
        raise errors.UsageError("this command uses one environment: name one with --environment")
    named_by_user = bool(settings.environments)
    return plan.single_request(spec, placed[0], settings, known, named=named_by_user), settings


def _check_inputs(path: Path) -> None:
    """Raises InputsError if the file is missing, of another type, or not valid TOML."""
    if path.suffix not in (".toml", ".safetensors"):
        raise errors.InputsError(f"{path}: a file of inputs must be a .toml or .safetensors file")
    try:
        data = path.read_bytes()
        if path.suffix == ".toml":
            tomllib.loads(data.decode())
    except OSError as error:
        raise errors.InputsError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise errors.InputsError(f"{path}: not a valid file of inputs: {error}") from None


def local_launcher(
    settings: Settings, names: Sequence[str], *, single: bool = False
) -> AbstractContextManager[LocalLauncher]:
    """The launcher of this machine for these environments, closed at the end."""
    return LocalLauncher(settings.jobs, tuple(names), cache=settings.cache_folder, single=single)


def launcher_of(settings: Settings, names: Sequence[str]) -> AbstractContextManager[Launcher]:
    """The launcher that the settings name, closed at the end; for generated code the sandbox."""
    if (sandboxed := extras.SANDBOXED.get(settings.source)) is not None:
        sandbox = plugins.load(sandboxed, f"--source {settings.source}")
        return contextlib.nullcontext(sandbox.of(settings, tuple(names)))
    if settings.launcher == "local":
        return local_launcher(settings, names)
    other = plugins.find("launcher", LAUNCHERS, settings.launcher)
    return cast("AbstractContextManager[Launcher]", other.of(settings, names))


def evaluate_one(
    request: records.Request,
    settings: Settings,
    *,
    keep: Path | None = None,
    around: Callable[[Launcher], AbstractContextManager[object]] = contextlib.nullcontext,
) -> records.Result:
    """Evaluate one request in a separate process, and store nothing.

    With `keep`, the artifacts are copied to that folder. `around` is entered while it runs.
    """
    # Without a folder for them, the trace need not be written and rendered.
    request = msgspec.structs.replace(request, keep_artifacts=keep is not None)
    with (
        temporary_folder() as scratch,
        local_launcher(settings, [request.target.environment], single=True) as launcher,
        around(launcher),
    ):
        (completed,) = launcher.run([request], Path(scratch))
        if keep is not None and completed.artifacts is not None:
            shutil.copytree(completed.artifacts, keep, dirs_exist_ok=True)
            for path in keep.rglob("*"):
                if path.is_file():
                    path.chmod(0o644)  # torch makes its trace readable by the owner only
    if keep is None:
        # The artifacts were deleted with the scratch folder.
        return msgspec.structs.replace(completed.result, artifacts=())
    return completed.result


class Working(records.Record, frozen=True, kw_only=True):
    """How long a worker of an environment took to start and to compile a small model.

    `threads` is the number of threads of the worker server: with more than one it cannot fork.
    """

    start_seconds: float
    request_seconds: float
    threads: int


def call_worker(
    environments: Environments, verb: str, request: records.Request, kind: type[T]
) -> T:
    """Run a verb of `worker.process.oneshot` and return its result.

    Raises InputsError with the message of the model's own error.
    """
    chosen = environments.interpreter(request.target.environment)
    done = oneshot(chosen, verb, msgspec.json.encode(request), request.deadlines.total_seconds)
    if done.returncode != 0:
        raise errors.InputsError(f"{request.model.name}: {last_line(done.stderr)}")
    return msgspec.json.decode(done.stdout, type=kind)


def try_environment(environments: Environments, name: str) -> Working:
    """Start a worker as a sweep does, and let it capture a tiny built-in model.

    Raises InterpreterError, with a message of one line, if that fails.
    """
    factory = "compilewatch.worker.process.warmup:one_layer"
    build = records.FactoryBuild(factory=factory, inputs=f"{factory}_inputs")
    model = records.ModelSpec(source="manifest", name="one layer", build=build)
    request = records.Request(
        model=model, target=records.Target(environment=name), key="check", tier=records.Tier.FAKE
    )
    began = time.monotonic()
    try:
        with (
            temporary_folder() as scratch,
            LocalLauncher(1, (name,), cache=environments.cache, warn=False) as launcher,
        ):
            (completed,) = launcher.run([request], Path(scratch))
            threads = launcher.server(name).threads
    except (errors.LauncherError, OSError) as error:
        raise errors.InterpreterError(str(error)) from None
    result = completed.result
    if result.status is not records.Status.PASS:
        raise errors.InterpreterError(
            f"a worker of environment {name!r} starts, but a model of one layer ends with the "
            f"status {result.status} in {result.phase}: {result.detail}"
        )
    spent = sum(result.durations.values())
    total = time.monotonic() - began
    return Working(start_seconds=total - spent, request_seconds=spent, threads=threads)


def working(environments: Environments, name: str, *, fresh: bool = False) -> tuple[Working, str]:
    """The result of `try_environment` and its time (UTC), kept until the environment changes."""
    return environments.remembered(
        "working", name, Working, lambda _: try_environment(environments, name), fresh=fresh
    )


def readiness(environments: Environments, name: str, *, fresh: bool = False) -> Readiness:
    """What targets lack in an environment, kept until it changes. Raises InterpreterError."""

    def check(chosen: Interpreter) -> Readiness:
        return answer(name, chosen, Readiness, CHECK_SECONDS, "oneshot", "targets")

    return environments.remembered("readiness", name, Readiness, check, fresh=fresh)[0]
