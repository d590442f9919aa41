"""The plan of a sweep: all requests, made from models and targets before anything runs."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from compilewatch import data, records
from compilewatch.config import Settings
from compilewatch.contract import targets as catalogue
from compilewatch.contract.libraries import ADAPTERS, LIBRARIES, PACKAGE_ENVIRONMENTS
from compilewatch.data import read_overrides
from compilewatch.environments import create_command
from compilewatch.errors import ConfigError, OsErrorsAs, UsageError
from compilewatch.records import Environment, ModelSpec, Request, Result, Target

# fmt: off
GENERIC_WORDS = frozenset({
    "audio", "base", "causal", "classification", "conditional", "config", "decoder", "encoder",
    "for", "generation", "head", "image", "lm", "model", "sequence", "text", "token", "video",
    "vision", "with",
})
# fmt: on
"""Words of class names and model types that do not show that two models are related."""


IDENTITY = ("digest", "torch", "torch_git", "transformers", "python", "device")
"""What of an environment can change a result."""

KEY_FOLDERS = ("contract", "data", "neuron", "worker")
"""Folders with the code that can change a result: rather too much than too little."""


@cache
def worker_sha256() -> str:
    """Return the digest of the code of workers, which is part of every result's key.

    An edit to any of these files makes results of earlier runs unusable; other edits do not.
    """
    folder = Path(__file__).parent
    total = hashlib.sha256()
    code = [path for name in KEY_FOLDERS for path in (folder / name).rglob("*.py")]
    # Other data enters a key row by row.
    named = (folder / "data" / f"{name}.toml" for name in ("diffusers", "neuron_operators"))
    for path in sorted((*code, *filter(Path.is_file, named))):
        total.update(f"{path.relative_to(folder)}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def class_of(spec: ModelSpec) -> str | None:
    """Return the class that a model is built from, None if only the worker knows it."""
    return getattr(spec.build, "class_name", None) or spec.architecture


def overrides_for(spec: ModelSpec, overrides: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the overrides that may apply to a model: rather one too many than one too few.

    Only these enter its key, so that a new line for one model does not repeat a thousand others.
    The class decides exactly. Only the worker knows the model type (a class of the family `clip`
    may have `clip_text_model`), so a type counts if it resembles the family or the class.
    """
    class_name = class_of(spec)
    applying = []
    for override in overrides:
        classes, types = override.get("classes", ()), override.get("model_types", ())
        if classes and class_name is not None and class_name not in classes:
            continue
        if types and not any(_resembles(t, spec.family, class_name or "") for t in types):
            continue
        applying.append(override)
    return applying


def request_key(
    request: Request, environment: Environment | None, overrides: Iterable[dict[str, Any]] = ()
) -> str:
    """Return the key of a request: a digest of everything that can change its result.

    It does not contain the model's name, downloads or licence, nor deadlines and memory limits,
    which can only prevent a result, nor the environment's name: two names of one environment share
    results. `environment` None means that it does not exist, so that the request does not run.
    Raises ConfigError if a file of inputs or operators cannot be read.
    """
    target_options = msgspec.structs.asdict(request.target)
    del target_options["environment"]
    target_options["device"] = request.device or catalogue.declared(request.target.device)
    return records.digest(
        {
            "build": _build_identity(request.model),
            "target": target_options,
            "tier": request.tier,
            "depth": request.depth,
            "variants": request.variants,
            "environment": attrgetter(*IDENTITY)(environment) if environment else (),
            "overrides": overrides_for(request.model, overrides),
            "inputs_file": _inputs_sha256(request),
            "harness": [records.HARNESS_VERSION, worker_sha256()],
        }
        # Only if it is on, so that results of sweeps without it stay valid.
        | ({"shapes": True} if request.shapes else {})
    )


def _build_identity(spec: ModelSpec) -> dict[str, Any]:
    build = spec.build
    if isinstance(build, records.ClassBuild):
        return {"class": build.class_name}
    if isinstance(build, records.FactoryBuild):
        identity = {"factory": build.factory, "inputs": build.inputs, "source": build.source_sha256}
        # Without the digest of the source, only the folder distinguishes two factories.
        return identity if build.source_sha256 else {**identity, "path": build.path}
    if isinstance(build, records.LibraryBuild):
        configuration = build.configuration_sha256
        return {"library": build.library, "name": build.name, "configuration": configuration}
    assert isinstance(build, records.ConfigBuild)  # an object of a caller is never planned
    pinned = [build.repo, spec.revision]
    adapter = {"adapter": build.adapter_sha256} if build.adapter_file is not None else {}
    return adapter | {
        "config": build.config_sha256,
        "class": build.class_name or spec.architecture,
        "weights": pinned if build.weights else None,
        "remote_code": pinned if build.trust_remote_code else None,
    }


def _inputs_sha256(request: Request) -> str | None:
    """Return the digest of the file of saved inputs. Raises ConfigError if it cannot be read."""
    path = request.inputs_file
    with OsErrorsAs(ConfigError, f"{path}: cannot be read"):
        return path and hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _resembles(model_type: str, family: str, class_name: str) -> bool:
    plain_type, known = _plain(model_type), _plain(family)
    return (
        known in ("", "unknown")
        or plain_type.startswith(known)
        or known.startswith(plain_type)
        or plain_type in _plain(class_name)
        or bool(_words(model_type) & (_words(family) | _words(class_name)))
    )


@cache
def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def _words(name: str) -> frozenset[str]:
    words = (w.lower() for w in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", name))
    return frozenset(words) - GENERIC_WORDS


def environments_of_targets(
    targets: Iterable[str], named: Sequence[str], devices: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the names of the environments in which these targets may run.

    These are the ones in `named`, otherwise the default and fallback environments of each target.
    `default` is a fallback because an agent can have the Neuron SDK next to compilewatch. For
    `devices` other than the CPU, a CUDA build of torch may be needed.
    """
    if named:
        return tuple(dict.fromkeys(named))
    environments = [records.DEFAULT_ENVIRONMENT]
    for text in targets:
        target = text.partition(":")[0]
        environments += catalogue.environments_of(target)
    if any(device.startswith(catalogue.CUDA_BUILD) for device in devices):
        environments.append(catalogue.CUDA_BUILD)
    return tuple(dict.fromkeys(environments))


def possible_environments(
    targets: Iterable[str], named: Sequence[str], devices: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return `environments_of_targets`, and those that have packages for single models.

    The latter only without `named`; which of them a plan needs is known when its models are.
    """
    further = () if named else tuple(PACKAGE_ENVIRONMENTS)
    return tuple(dict.fromkeys((*environments_of_targets(targets, named, devices), *further)))


def place(
    targets: Iterable[Target], named: Sequence[str], environments: Iterable[Environment]
) -> tuple[Target, ...]:
    """Return each target once for each environment in which it runs.

    Without `named`, this is the target's default environment, or another one that can run it if
    the default cannot: where that has a CPU build of torch, `cuda` for what needs a CUDA build.
    With `named`, it is each named environment that can run the target. A target that no environment
    can run stays in its default environment. Raises UsageError for a name that is not one of
    `environments`, and for `default` with an environment that has packages for single models:
    models are placed there, so that each result would exist twice under one label.
    """
    known = {environment.name: environment for environment in environments}
    if both := [
        name for name in PACKAGE_ENVIRONMENTS if {name, records.DEFAULT_ENVIRONMENT} <= set(named)
    ]:
        raise UsageError(
            f"environments default and {both[0]} cannot be named together: without a name, the "
            f"models that need {both[0]} run there and the others in default"
        )
    for name in named:
        if name not in known:
            raise UsageError(
                f"no environment {name!r}; known: {', '.join(sorted(known))}; "
                f"{create_command(name)}"
            )
    return tuple(
        msgspec.structs.replace(target, environment=name)
        for target in targets
        for name in _places(target, named, known)
    )


def needs(target: Target) -> str:
    """Return why a target cannot run if its environment does not exist, and what to type."""
    name = target.environment
    packages = ", ".join(PACKAGE_ENVIRONMENTS.get(name, ()))
    having = f", which has {packages}" if packages else ""
    return f"needs the environment {name!r}{having}: {create_command(name)}"


def place_model(
    spec: ModelSpec,
    target: Target,
    overrides: Iterable[dict[str, Any]],
    known: Mapping[str, Environment],
) -> tuple[ModelSpec, Target]:
    """Return a model and its target in the environment that has the packages of the model.

    Its build names some (its library, its adapter, the library of its backbone), and the field
    `packages` of the overrides for its class further ones. If the default environment lacks one, a
    target of it moves to the environment of `PACKAGE_ENVIRONMENTS` that has all: an existing one,
    or else the first one. A reason to skip a class of a library is about packages that the default
    environment lacks, and is dropped; any other reason is valid in every environment.
    """
    default = known.get(records.DEFAULT_ENVIRONMENT)
    if target.environment != records.DEFAULT_ENVIRONMENT or default is None:
        return spec, target
    if spec.skip_reason is not None and not isinstance(spec.build, records.ClassBuild):
        return spec, target
    missing = _packages_of(spec, overrides, default) - default.packages.keys()
    fit = [name for name, offered in PACKAGE_ENVIRONMENTS.items() if missing <= set(offered)]
    if not missing or not fit:
        return spec, target
    name = next((name for name in fit if name in known), fit[0])
    placed = msgspec.structs.replace(target, environment=name)
    return msgspec.structs.replace(spec, skip_reason=None), placed


def without_adapter(
    spec: ModelSpec, target: Target, known: Mapping[str, Environment], *, named: bool
) -> ModelSpec:
    """Return a model without its adapter if PEFT is not where the model may run.

    These are the environment of its target and, unless a person `named` that, the environments
    that have packages for single models. The result then says that it is about the base alone.
    """
    build = spec.build
    if not isinstance(build, records.ConfigBuild) or build.adapter_file is None:
        return spec
    further = (
        () if named or target.environment != records.DEFAULT_ENVIRONMENT else PACKAGE_ENVIRONMENTS
    )
    places = (known[name] for name in (target.environment, *further) if name in known)
    if any(ADAPTERS in place.packages for place in places):
        return spec
    packages = tuple(package for package in build.packages if package != ADAPTERS)
    alone = msgspec.structs.replace(build, adapter_file=None, adapter_sha256="", packages=packages)
    return msgspec.structs.replace(spec, build=alone, part=records.Part.BASE)


def missing_package(spec: ModelSpec, environment: Environment) -> str | None:
    """Return why a model cannot be built in an environment that lacks its packages, or None."""
    missing = sorted(_own_packages(spec) - environment.packages.keys())
    if not missing:
        return None
    torch = environment.torch.partition("+")[0]
    return (
        f"needs the {'package' if len(missing) == 1 else 'packages'} {' and '.join(missing)}, "
        f"which the environment {environment.name!r} lacks: "
        f"compilewatch env create NAME --torch {torch} --with {','.join(missing)}"
    )


def _own_packages(spec: ModelSpec) -> set[str]:
    """Return the packages besides Transformers that a model's own build names."""
    build = spec.build
    if isinstance(build, records.LibraryBuild):
        return {LIBRARIES[build.library].distribution} if build.library in LIBRARIES else set()
    return set(build.packages) if isinstance(build, records.ConfigBuild) else set()


def _packages_of(
    spec: ModelSpec, overrides: Iterable[dict[str, Any]], environment: Environment
) -> set[str]:
    release = environment.transformers or ""
    return _own_packages(spec) | {
        package
        for override in overrides_for(spec, overrides)
        # Only a class is known exactly here: a model type is known to the worker only, and so is
        # the class of a model without one, which `overrides_for` lets every override match.
        if override.get("packages") and class_of(spec) in override.get("classes", ())
        if SpecifierSet(override.get("transformers", "")).contains(release, prereleases=True)
        for package in override["packages"]
    }


def _places(
    target: Target, named: Sequence[str], known: Mapping[str, Environment]
) -> tuple[str, ...]:
    row = catalogue.entry(target.name)
    if not row.routes:
        default = known.get(row.environment)
        cpu_build = default is not None and default.cuda is None
        elsewhere = cpu_build and catalogue.needs_cuda_build(target)
        return tuple(named) or (catalogue.CUDA_BUILD if elsewhere else row.environment,)
    for route in row.routes:
        able = [
            name
            for name in named or dict.fromkeys((route.environment, *known))
            if name in known and route.fits(known[name].packages)
        ]
        if able:
            return tuple(able) if named else (able[0],)
    return (row.environment,)


class Expectation(data.Reviewed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One reviewed line.

    `model` is a model's name or its class. `target` is a label (`dynamo/train`) or the name of a
    target for all its modes; None means every target. A label applies in every environment unless
    it names one (`dynamo/train@xla`). `phase` narrows `status`. `torch` and `transformers` are PEP
    440 specifiers; with other versions the line does not apply. `skip` means that the model does
    not run at all, because it would harm the machine or the sweep.
    """

    model: str
    status: records.Status
    target: str | None = None
    phase: records.Phase | None = None
    torch: str | None = None
    transformers: str | None = None
    skip: bool = False

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ValueError("an expectation needs a `reason`")
        for name in ("torch", "transformers"):
            try:
                SpecifierSet(getattr(self, name) or "")
            except InvalidSpecifier as error:
                raise ValueError(f"`{name}` is not a version specifier: {error}") from None

    def concerns(self, request: Request, environment: Environment) -> bool:
        """Whether the line applies to this request in this environment."""
        if self.model not in (request.model.name, class_of(request.model)):
            return False
        target = request.target
        label = catalogue.target_label(target)
        if self.target not in (None, target.name, label, label.partition("@")[0]):
            return False
        return _within(self.torch, environment.torch) and _within(
            self.transformers, environment.transformers
        )

    def holds(self, result: Result) -> bool:
        return result.status is self.status and self.phase in (None, result.phase)


class Expectations(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of the file. The first line that applies to a request decides."""

    schema_version: int = 1
    expectation: tuple[Expectation, ...] = ()

    def of(self, request: Request, environment: Environment) -> Expectation | None:
        return next((e for e in self.expectation if e.concerns(request, environment)), None)

    def judge(self, result: Result, environment: Environment) -> Result:
        """Return the result with the reason of the expectation that it meets, or with None."""
        expected = self.of(result.request, environment)
        reason = expected.reason if expected is not None and expected.holds(result) else None
        if reason == result.expectation:
            return result
        return msgspec.structs.replace(result, expectation=reason)

    def stale(
        self, results: Iterable[Result], environments: Iterable[Environment]
    ) -> list[tuple[Expectation, Result]]:
        """Return the expectations that were tested and no longer hold, with the new results."""
        known = {environment.name: environment for environment in environments}
        failed = []
        for result in results:
            environment = known.get(result.request.target.environment)
            if environment is None or result.status is records.Status.SKIPPED:
                continue
            expected = self.of(result.request, environment)
            if expected is not None and not expected.holds(result):
                failed.append((expected, result))
        return failed


def load_expectations(path: Path | None) -> Expectations:
    """Read a project's own expectations, if there are any, and the shipped ones.

    Raises ConfigError.
    """
    files = data.read(path, data.EXPECTATIONS, Expectations)
    return Expectations(expectation=tuple(line for file in files for line in file.expectation))


def stale_note(expected: Expectation, result: Result) -> str:
    """Return one line about an expectation that no longer holds, with the actual result."""
    status = f"{expected.status.value}" + (f" in {expected.phase.value}" if expected.phase else "")
    return (
        f"{expected.model} [{catalogue.target_label(result.request.target)}]: expected {status} "
        f"({expected.reason}, {expected.date}) but the result is {result.status.value} in "
        f"{result.phase.value}; update expectations.toml, or add a line to your own"
    )


def _within(specifier: str | None, version: str | None) -> bool:
    if specifier is None:
        return True
    return version is not None and SpecifierSet(specifier).contains(version, prereleases=True)


Own = Mapping[str, Sequence[ModelSpec]]
"""Environment -> its models, where its Transformers has other models than the rest of a plan."""


def plan(
    specs: Sequence[ModelSpec],
    targets: Sequence[Target],
    settings: Settings,
    environments: Iterable[Environment],
    *,
    own: Own | None = None,
    expectations: Expectations | None = None,
    shard: records.Shard | None = None,
    named: bool = False,
) -> records.Plan:
    """Make one request for each model and target, in the order of the models, `first` ones first.

    `environments` are those that exist. A target that names another one is `unsupported`; the
    detail says what to type. Unless a person `named` the environments, a model that needs further
    packages is planned for the environment that has them (`place_model`). A target in an
    environment with models of its `own` is planned for those of `specs` that the environment has,
    as it describes them.

    Raises UsageError for an empty plan, an unknown target or a name that two models share, and
    ConfigError for overrides or inputs that cannot be read.
    """
    if not specs:
        raise UsageError("no models to check: the selection is empty")
    check_targets(targets)
    for name, models in Counter(spec.name for spec in specs).items():
        if models > 1:
            raise UsageError(f"two models are called {name!r}: rename one or select by source")
    overrides = _overrides(settings)
    known = {environment.name: environment for environment in environments}
    in_shard = shard.holds(spec.name for spec in specs) if shard is not None else None
    requests: list[Request] = []
    skipped: list[Result] = []
    identity: list[tuple[str, str, bool]] = []
    for spec, target in pairs(specs, targets, own, settings.train_top):
        request = _request(spec, target, settings, overrides, known, named=named)
        environment = known.get(request.target.environment)
        key = request_key(request, environment, overrides)
        request = msgspec.structs.replace(request, key=key)
        result = _result_without_run(request, environment, expectations or Expectations())
        identity.append((spec.name, key, result is None))
        if in_shard is None or spec.name in in_shard:
            if result is None:
                requests.append(request)
            else:
                skipped.append(result)
    return records.Plan(
        requests=tuple(sorted(requests, key=lambda r: r.model.name not in settings.first)),
        skipped=tuple(skipped),
        digest=records.digest(sorted(identity)),
    )


def single_request(
    spec: ModelSpec,
    target: Target,
    settings: Settings,
    environments: Iterable[Environment],
    *,
    named: bool,
) -> Request:
    """Return the request of a command that stores nothing; it has no key.

    Raises UsageError for a model that is not run, and ConfigError for a file that cannot be read.
    """
    known = {environment.name: environment for environment in environments}
    request = _request(spec, target, settings, _overrides(settings), known, named=named)
    result = _result_without_run(request, known.get(request.target.environment), Expectations())
    if result is not None:
        raise UsageError(f"{spec.name} is not run: {result.detail}")
    _inputs_sha256(request)  # before a worker starts
    return request


def pairs(
    specs: Sequence[ModelSpec],
    targets: Sequence[Target],
    own: Own | None = None,
    train_top: int = 0,
) -> Iterator[tuple[ModelSpec, Target]]:
    """Yield every model with every target that it is planned for; see `plan`.

    Only the first `train_top` models are planned in the mode train; 0 means all.
    """
    known = {name: {spec.name: spec for spec in models} for name, models in (own or {}).items()}
    for place, spec in enumerate(specs):
        for target in targets:
            model = known.get(target.environment, {spec.name: spec}).get(spec.name)
            left_out = 0 < train_top <= place and target.mode is records.Mode.TRAIN
            if model is not None and not left_out:
                yield model, target


NESTED_GRAPH_BREAKS = {"default": None, "on": True, "off": False}
"""The setting `nested_graph_breaks` -> the field of a target."""


def targets_of(
    names: Iterable[str],
    modes: Iterable[records.Mode],
    dynamic: bool | None,
    nested: str = "default",
    *,
    devices: Iterable[str] = (catalogue.CPU,),
    dtype: records.Dtype | None = None,
) -> tuple[Target, ...]:
    """Return every target in every mode for every device, without duplicates.

    `neuron:trn2` selects a backend. `nested` is the setting `nested_graph_breaks`, for the targets
    that have it. `dtype` None means the default of each device. Raises UsageError for an unknown
    device.
    """
    having = [name for name, row in catalogue.TARGETS.items() if row.nested_graph_breaks]
    targets = (
        Target(
            name=name,
            backend=backend or None,
            mode=mode,
            dynamic=dynamic,
            nested_graph_breaks=NESTED_GRAPH_BREAKS[nested] if name in having else None,
            device=device,
            dtype=dtype or catalogue.default_dtype(device),
        )
        for name, _, given in (text.partition(":") for text in names)
        for mode in modes
        for backend, device in (_on_device(name, given, device) for device in devices)
    )
    return tuple(dict.fromkeys(targets))


def _on_device(target: str, backend: str, device: str) -> tuple[str, str]:
    """Return a target's backend and device: for `neuron`, `neuron:trn3` is its backend trn3."""
    device = catalogue.canonical(device)
    kind, _, name = device.partition(":")
    return (backend or name, catalogue.CPU) if kind == target else (backend, device)


def parse_shard(text: str) -> records.Shard:
    """Parse a shard such as `2/5`. Raises UsageError if it is malformed or out of range."""
    matched = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if matched is None:
        raise UsageError(f"shard {text!r} is not of the form I/N, such as 1/4")
    index, count = int(matched[1]), int(matched[2])
    if not 1 <= index <= count:
        example = f"1/{count} to {count}/{count}" if count else "1/N to N/N"
        raise UsageError(f"there is no shard {text}: shards are numbered {example}")
    return records.Shard(index=index, count=count)


def check_targets(targets: Sequence[Target]) -> None:
    """Raise UsageError if there is no target, or for a name, backend or device that it lacks."""
    if not targets:
        raise UsageError("no targets to check models on: name at least one with --targets")
    for target in targets:
        known = catalogue.entry(target.name).backends
        if target.backend is not None and known is not None and target.backend not in known:
            raise UsageError(
                f"{target.name} has no backend {target.backend!r}; "
                f"known: {', '.join(known) or 'none'}"
            )
        catalogue.check_device(target)


def _overrides(settings: Settings) -> Sequence[dict[str, Any]]:
    folder = Path(settings.overrides_dir)
    return read_overrides(folder if folder.is_dir() else None)


def _request(
    spec: ModelSpec,
    target: Target,
    settings: Settings,
    overrides: Iterable[dict[str, Any]],
    known: Mapping[str, Environment],
    *,
    named: bool,
) -> Request:
    """Return the request of a model on a target, in the environment that fits, without a key."""
    spec = without_adapter(spec, target, known, named=named)
    if not named:
        placing = [override for override in overrides if override.get("packages")]
        spec, target = place_model(spec, target, placing, known)
    folder = Path(settings.overrides_dir)
    device, row = _device(target, known), catalogue.entry(target.name)
    return Request(
        model=spec,
        target=target,
        key="",
        device=device,
        shapes=settings.shapes and device is None and row.traces_shapes,
        tier=settings.tier,
        depth=settings.depth,
        variants=settings.variants if row.evaluates_variants else records.Variants.MAIN,
        deadlines=catalogue.deadlines_of(target.name, settings.deadlines),
        memory_limit_bytes=settings.memory_limit_bytes,
        inputs_file=spec.inputs_file,
        overrides_dir=str(folder) if folder.is_dir() else None,
    )


def _device(target: Target, known: Mapping[str, Environment]) -> records.DeclaredDevice | None:
    """Return the device that a request declares: the named one, or that of a forecast."""
    environment = known.get(target.environment)
    route = environment and catalogue.route_of(target.name, environment.packages)
    if target.device != catalogue.CPU or not route or not route.forecast:
        return catalogue.declared(target.device)
    rows = {row.name: row for row in catalogue.devices() if row.kind == target.name}
    if target.backend and target.backend not in rows:
        raise UsageError(
            f"no forecast for {target.backend}: TorchNeuron is for {' and '.join(rows)}; for "
            f"others, {create_command('neuron-xla')}"
        )
    return rows[target.backend] if target.backend else catalogue.declared(target.name)


def _result_without_run(
    request: Request, environment: Environment | None, expectations: Expectations
) -> Result | None:
    """Return the result of a request that does not run, or None for one that runs."""
    model, status = request.model, records.Status.SKIPPED
    error: records.ErrorRecord | None = None
    expectation: str | None = None
    if model.error is not None:
        status, reason = records.Status.ERROR, model.error
        error = records.ErrorRecord(type="ConfigError", message=reason, code="configuration_error")
    elif model.skip_reason is not None:
        reason = model.skip_reason
    elif environment is None:
        status, reason = records.Status.UNSUPPORTED, needs(request.target)
    elif (missing := missing_package(model, environment)) is not None:
        reason = missing
    else:
        expected = expectations.of(request, environment)
        if expected is None or not expected.skip:
            return None
        reason = expectation = expected.reason
    return Result(
        request=request,
        status=status,
        phase=records.Phase.SETUP,
        tier=request.tier,
        depth=request.depth,
        detail=reason,
        error=error,
        expectation=expectation,
        environment_digest=environment.digest if environment is not None else "",
    )
