"""The plan of a sweep: all requests, made from models and targets before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from compilewatch.config.settings import Settings
from compilewatch.contract.devices import canonical, check_device, declared
from compilewatch.contract.targets import (
    CPU,
    TARGETS,
    deadlines_of,
    default_dtype,
    entry,
    variants_of,
)
from compilewatch.data import NEURON_OPERATORS, read_overrides
from compilewatch.errors import UsageError
from compilewatch.plan.expectations import Expectations
from compilewatch.plan.keys import request_key
from compilewatch.plan.placement import missing_package, needs, place_model, without_adapter
from compilewatch.records import (
    Dtype,
    Environment,
    ErrorRecord,
    Mode,
    ModelSpec,
    Options,
    Phase,
    Plan,
    Request,
    Result,
    Shard,
    Status,
    Target,
    digest,
)

Own = Mapping[str, Sequence[ModelSpec]]
"""Environment -> its models, where its Transformers has other models than the rest of a plan."""


def options_of(settings: Settings, environments: Iterable[Environment]) -> Options:
    """The options with which a sweep with these settings evaluates its models."""
    overrides = Path(settings.overrides_dir)
    operators = Path(settings.neuron_operators_file)
    return Options(
        environments=tuple(environments),
        tier=settings.tier,
        depth=settings.depth,
        variants=settings.variants,
        deadlines=settings.deadlines,
        memory_limit_bytes=settings.memory_limit_bytes,
        overrides_dir=str(overrides) if overrides.is_dir() else None,
        neuron_operators=str(operators) if operators.is_file() else None,
    )


def plan(
    specs: Sequence[ModelSpec],
    targets: Sequence[Target],
    options: Options,
    *,
    own: Own | None = None,
    expectations: Expectations | None = None,
    shard: Shard | None = None,
    named: bool = False,
) -> Plan:
    """Make one request for each model and target, in the order of the models.

    Unless a person `named` the environments, a model that needs further packages is planned for the
    environment that has them (`placement.place_model`).

    A target in an environment with models of its `own` is planned for those of `specs` that the
    environment has, as it describes them. A target whose environment does not exist is
    `unsupported`; the detail says what to type.

    Raises UsageError for an empty plan, an unknown target or a name that two models share, and
    ConfigError for overrides or inputs that cannot be read.
    """
    _check(specs, targets)
    expected = expectations or Expectations()
    overrides = read_overrides(Path(options.overrides_dir) if options.overrides_dir else None)
    placing = [override for override in overrides if override.get("packages")]
    known = {environment.name: environment for environment in options.environments}
    in_shard = shard.holds(spec.name for spec in specs) if shard is not None else None
    requests: list[Request] = []
    skipped: list[Result] = []
    identity: list[tuple[str, str, bool]] = []
    for spec, target in pairs(specs, targets, own):
        spec = without_adapter(spec, target, known, named=named)
        if not named:
            spec, target = place_model(spec, target, placing, known)
        environment = known.get(target.environment)
        key = _key(spec, target, environment, overrides, options)
        request = _request(spec, target, key, options)
        result = _result_without_run(request, environment, expected)
        identity.append((spec.name, key, result is None))
        if in_shard is not None and spec.name not in in_shard:
            continue
        if result is None:
            requests.append(request)
        else:
            skipped.append(result)
    return Plan(
        requests=tuple(requests),
        skipped=tuple(skipped),
        digest=digest(sorted(identity)),
        shard=shard,
    )


def pairs(
    specs: Sequence[ModelSpec], targets: Sequence[Target], own: Own | None = None
) -> Iterator[tuple[ModelSpec, Target]]:
    """Yield every model with every target that it is planned for; see `plan`."""
    known = {name: {spec.name: spec for spec in models} for name, models in (own or {}).items()}
    for spec in specs:
        for target in targets:
            model = known.get(target.environment, {spec.name: spec}).get(spec.name)
            if model is not None:
                yield model, target


NESTED_GRAPH_BREAKS = {"default": None, "on": True, "off": False}
"""The setting `nested_graph_breaks` -> the field of a target."""


def targets_of(
    names: Iterable[str],
    modes: Iterable[Mode],
    dynamic: bool | None,
    nested: str = "default",
    *,
    devices: Iterable[str] = (CPU,),
    dtype: Dtype | None = None,
) -> tuple[Target, ...]:
    """Return every target in every mode for every device, without duplicates.

    `neuron:trn2` selects a backend. `nested` is the setting `nested_graph_breaks`, for the targets
    that have it. `dtype` None means the default of each device. Raises UsageError for an unknown
    device.
    """
    targets = (
        Target(
            name=name,
            backend=backend or None,
            mode=mode,
            dynamic=dynamic,
            nested_graph_breaks=_nested(name, nested),
            device=device,
            dtype=dtype or default_dtype(device),
        )
        for name, _, backend in (text.partition(":") for text in names)
        for mode in modes
        for device in map(canonical, devices)
    )
    return tuple(dict.fromkeys(targets))


def _nested(name: str, nested: str) -> bool | None:
    has_it = name in TARGETS and TARGETS[name].nested_graph_breaks
    return NESTED_GRAPH_BREAKS[nested] if has_it else None


def parse_shard(text: str) -> Shard:
    """Parse a shard such as `2/5`. Raises UsageError if it is malformed or out of range."""
    matched = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if matched is None:
        raise UsageError(f"shard {text!r} is not of the form I/N, such as 1/4")
    index, count = int(matched[1]), int(matched[2])
    if not 1 <= index <= count:
        example = f"1/{count} to {count}/{count}" if count else "1/N to N/N"
        raise UsageError(f"there is no shard {text}: shards are numbered {example}")
    return Shard(index=index, count=count)


def _check(specs: Sequence[ModelSpec], targets: Sequence[Target]) -> None:
    if not specs:
        raise UsageError("no models to check: the selection is empty")
    check_targets(targets)
    seen: set[str] = set()
    for spec in specs:
        if spec.name in seen:
            raise UsageError(f"two models are called {spec.name!r}: rename one or select by source")
        seen.add(spec.name)


def check_targets(targets: Sequence[Target]) -> None:
    """Raise UsageError if there is no target, or for a name, backend or device that it lacks."""
    if not targets:
        raise UsageError("no targets to check models on: name at least one with --targets")
    for target in targets:
        known = entry(target.name).backends
        if target.backend is not None and known is not None and target.backend not in known:
            raise UsageError(
                f"{target.name} has no backend {target.backend!r}; "
                f"known: {', '.join(known) or 'none'}"
            )
        check_device(target)


def _key(
    spec: ModelSpec,
    target: Target,
    environment: Environment | None,
    overrides: Iterable[dict[str, Any]],
    options: Options,
) -> str:
    inputs_file = options.inputs_file or spec.inputs_file
    return request_key(
        spec,
        target,
        environment=environment,
        tier=options.tier,
        depth=options.depth,
        variants=options.variants,
        overrides=overrides,
        inputs_file=Path(inputs_file) if inputs_file else None,
        operators_files=_operators_files(target, options),
    )


def _request(spec: ModelSpec, target: Target, key: str, options: Options) -> Request:
    return Request(
        model=spec,
        target=target,
        key=key,
        device=declared(target.device),
        tier=options.tier,
        depth=options.depth,
        variants=variants_of(target.name, options.variants),
        deadlines=deadlines_of(target.name, options.deadlines),
        memory_limit_bytes=options.memory_limit_bytes,
        inputs_file=options.inputs_file or spec.inputs_file,
        overrides_dir=options.overrides_dir,
        neuron_operators=options.neuron_operators,
        keep_artifacts=options.keep_artifacts,
    )


def _operators_files(target: Target, options: Options) -> tuple[Path, ...]:
    """Return the lists of Neuron operators for the one target whose results depend on them."""
    if not entry(target.name).reads_neuron_operators:
        return ()
    own = options.neuron_operators
    return (Path(own), NEURON_OPERATORS) if own is not None else (NEURON_OPERATORS,)


def _result_without_run(
    request: Request, environment: Environment | None, expectations: Expectations
) -> Result | None:
    """Return the result of a request that does not run, or None for one that runs."""
    reason, expectation = request.model.skip_reason, None
    status = Status.SKIPPED
    if request.model.error is not None:
        return Result(
            request=request,
            status=Status.ERROR,
            phase=Phase.SETUP,
            tier=request.tier,
            depth=request.depth,
            detail=request.model.error,
            error=ErrorRecord(
                type="ConfigError", message=request.model.error, code="configuration_error"
            ),
            environment_digest=environment.digest if environment is not None else "",
        )
    if reason is None and environment is None:
        status, reason = Status.UNSUPPORTED, needs(request.target)
    elif reason is None and environment is not None:
        reason = missing_package(request.model, environment)
    if reason is None:
        assert environment is not None
        expected = expectations.of(request, environment)
        if expected is None or not expected.skip:
            return None
        reason = expectation = expected.reason
    return Result(
        request=request,
        status=status,
        phase=Phase.SETUP,
        tier=request.tier,
        depth=request.depth,
        detail=reason,
        expectation=expectation,
        environment_digest=environment.digest if environment is not None else "",
    )
