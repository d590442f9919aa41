"""In which environment each target runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from packaging.specifiers import SpecifierSet

from compilewatch.contract.targets import (
    CPU,
    CUDA_BUILD,
    PACKAGE_ENVIRONMENTS,
    default_environment,
    entry,
    fallback_environments,
    needs_cuda_build,
)
from compilewatch.environments import create_command
from compilewatch.errors import UsageError
from compilewatch.plan.keys import class_of, overrides_for
from compilewatch.records import (
    DEFAULT_ENVIRONMENT,
    ClassBuild,
    ConfigBuild,
    Environment,
    LibraryBuild,
    ModelSpec,
    Part,
    Target,
)
from compilewatch.sources.libraries import ADAPTERS, package_of


def wanted(
    targets: Iterable[str], named: Sequence[str], devices: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the names of the environments in which these targets may run.

    These are the ones in `named`, otherwise the default and fallback environments of each target.
    `default` is a fallback because an agent can have the Neuron SDK next to compilewatch. For
    `devices` other than the CPU, a CUDA build of torch may be needed.
    """
    if named:
        return tuple(dict.fromkeys(named))
    environments = [DEFAULT_ENVIRONMENT]
    for text in targets:
        target = text.partition(":")[0]
        environments += [default_environment(target), *fallback_environments(target)]
    if any(device != CPU for device in devices):
        environments.append(CUDA_BUILD)
    return tuple(dict.fromkeys(environments))


def possible(
    targets: Iterable[str], named: Sequence[str], devices: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return `wanted`, and without `named` the environments that have packages for single models.

    Which of those a plan needs is known when its models are.
    """
    further = () if named else tuple(PACKAGE_ENVIRONMENTS)
    return tuple(dict.fromkeys((*wanted(targets, named, devices), *further)))


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
    if both := [name for name in PACKAGE_ENVIRONMENTS if {name, DEFAULT_ENVIRONMENT} <= set(named)]:
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
    default = known.get(DEFAULT_ENVIRONMENT)
    if target.environment != DEFAULT_ENVIRONMENT or default is None:
        return spec, target
    if spec.skip_reason is not None and not isinstance(spec.build, ClassBuild):
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
    if not isinstance(build, ConfigBuild) or build.adapter_file is None:
        return spec
    further = () if named or target.environment != DEFAULT_ENVIRONMENT else PACKAGE_ENVIRONMENTS
    places = (known[name] for name in (target.environment, *further) if name in known)
    if any(ADAPTERS in place.packages for place in places):
        return spec
    packages = tuple(package for package in build.packages if package != ADAPTERS)
    alone = msgspec.structs.replace(build, adapter_file=None, adapter_sha256="", packages=packages)
    return msgspec.structs.replace(spec, build=alone, part=Part.BASE)


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
    if isinstance(build, LibraryBuild):
        own = package_of(build.library)
        return {own} if own is not None else set()
    return set(build.packages) if isinstance(build, ConfigBuild) else set()


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
    row = entry(target.name)
    if not row.packages:
        default = known.get(row.environment)
        cpu_build = default is not None and default.cuda is None
        own = CUDA_BUILD if cpu_build and needs_cuda_build(target) else row.environment
        return tuple(named) or (own,)
    for packages in (row.packages, row.fallback_packages):
        able = [
            name
            for name in named or dict.fromkeys((row.environment, *known))
            if name in known and set(packages) & known[name].packages.keys()
        ]
        if able:
            return tuple(able) if named else (able[0],)
    return (row.environment,)
