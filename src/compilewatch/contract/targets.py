"""The catalogue of compile targets: one row contains everything the parent knows of a target.

To add a target, write a class that implements `worker.targets.CompileTarget` and add a row here.
The parent plans, places and names targets by these rows and never imports an implementation.
"""

import shlex
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec
from packaging.requirements import Requirement

from compilewatch import records
from compilewatch.contract.libraries import PACKAGE_ENVIRONMENTS
from compilewatch.errors import UsageError, did_you_mean

CPU = "cpu"
"""The device of a target unless another one is named."""

CUDA_BUILD = "cuda"
"""The environment with compilewatch's own torch as a CUDA build, for what a CPU build cannot do."""


class Route(records.Record, frozen=True, kw_only=True):
    """One way to evaluate a target, and what an environment needs for it.

    Attributes:
        name: what the result says.
        package: what it needs, as `torch-neuronx>=2.13`.
        environment: the environment with a recipe that meets them.
        forecast: whether its result is a forecast, on a device that is only declared.
        forks: whether a request may be evaluated in a fork; otherwise it gets a process that has
            imported nothing before.
    """

    name: str
    package: str
    environment: str
    forecast: bool = False
    forks: bool = True

    def fits(self, installed: Mapping[str, str]) -> bool:
        """Whether an environment with these packages (name -> version) can take this route."""
        requirement = Requirement(self.package)
        version = installed.get(requirement.name)
        return version is not None and requirement.specifier.contains(version, prereleases=True)


class TargetEntry(records.Record, frozen=True, kw_only=True):
    """One compile target.

    Attributes:
        implementation: `"module:Class"`, a `CompileTarget`; imported in a worker only.
        environment: the default environment.
        routes: the ways to evaluate it, the best first; empty if torch alone is sufficient.
        backends: the values of `Target.backend`; None: those of `torch.compile`.
        variables: environment variables that workers of the default environment need.
        warm_up: modules that a server imports before its first child, in order.
        compile_deadline: the field of `Deadlines` that limits the phase `compile`.
        single_graph: whether the target captures a model as one graph or rejects it, so that the
            number of graphs has no meaning.
        device_of_child: whether a child gets a device that its server has not. Autograd counts the
            devices at the first backward of a process, so the server must not run one.
        captures_for_devices: whether it captures models for a device that is only declared. Such a
            target generates no code.
        evaluates_variants: whether it evaluates each input variant of a model.
        traces_shapes: whether it can call a model with the sizes of `records.STANDARD_TRACE`.
        counts_graph_breaks: whether a pass means that there is no graph break. Otherwise a model
            that passes may consist of several graphs.
        nested_graph_breaks: whether the target reads `Target.nested_graph_breaks`.
    """

    implementation: str
    environment: str = records.DEFAULT_ENVIRONMENT
    routes: tuple[Route, ...] = ()
    backends: tuple[str, ...] | None = None
    variables: dict[str, str] = {}
    warm_up: tuple[str, ...] = ()
    compile_deadline: str = "compile_seconds"
    single_graph: bool = False
    device_of_child: bool = False
    nested_graph_breaks: bool = False
    captures_for_devices: bool = False
    evaluates_variants: bool = False
    traces_shapes: bool = False
    counts_graph_breaks: bool = True


TARGETS: dict[str, TargetEntry] = {
    "dynamo": TargetEntry(
        implementation="compilewatch.worker.targets.dynamo.target:DynamoTarget",
        nested_graph_breaks=True,
        captures_for_devices=True,
        evaluates_variants=True,
        traces_shapes=True,
    ),
    "export": TargetEntry(
        implementation="compilewatch.worker.targets.export:ExportTarget",
        backends=("non_strict", "strict"),
        warm_up=(
            "torch.export._trace",
            "torch.export._draft_export",
            "torch.export.passes",
            "compilewatch.worker.targets.export",
        ),
        single_graph=True,
        captures_for_devices=True,
    ),
    "numerics": TargetEntry(
        implementation="compilewatch.worker.targets.execution:NumericsTarget",
        warm_up=("compilewatch.worker.targets.execution",),
        counts_graph_breaks=False,
    ),
    "inductor": TargetEntry(
        implementation="compilewatch.worker.targets.inductor:InductorTarget",
        warm_up=(
            "torch._inductor.compile_fx",
            "torch._inductor.codegen.cpp",
            "compilewatch.worker.targets.inductor",
        ),
        counts_graph_breaks=False,
    ),
    "xla": TargetEntry(
        implementation="compilewatch.worker.targets.xla.target:XlaTarget",
        environment="xla",
        routes=(Route(name="xla", package="torch-xla", environment="xla"),),
        backends=(),
        variables={"PJRT_DEVICE": "CPU"},
        # Importing them creates no PJRT client and no thread (torch_xla 2.9), so a fork is safe.
        warm_up=("torch_xla", "torch_xla.core.xla_model"),
        device_of_child=True,
    ),
    "neuron": TargetEntry(
        implementation="compilewatch.worker.targets.neuron.target:NeuronTarget",
        environment="neuron",
        routes=(
            Route(
                name="native",
                package="torch-neuronx>=2.13",
                environment="neuron",
                # Variables count at its import, and its runtime does not survive a fork.
                forks=False,
            ),
            Route(name="xla", package="torch-neuronx<2.13", environment="neuron-xla"),
            Route(name="lowering", package="torch-mlir", environment="lowering", forecast=True),
        ),
        warm_up=("torch_mlir.fx", "torch_mlir.passmanager"),
        backends=("trn1", "trn1n", "inf2", "trn2", "trn3"),
        compile_deadline="neuron_compile_seconds",
        device_of_child=True,
    ),
}
"""All targets, in the order in which a model has to pass them."""


def entry(name: str) -> TargetEntry:
    """Return the row of a target. Raises UsageError for an unknown name."""
    if name not in TARGETS:
        raise UsageError(f"no target {name!r}; known: {', '.join(sorted(TARGETS))}")
    return TARGETS[name]


def default_environment(name: str) -> str:
    """Return the environment in which a target runs unless another one is named."""
    return TARGETS[name].environment if name in TARGETS else records.DEFAULT_ENVIRONMENT


def environments_of(name: str) -> tuple[str, ...]:
    """Return the environments of a target's recipes: the default one, and one for each route."""
    routes = TARGETS[name].routes if name in TARGETS else ()
    return tuple(dict.fromkeys((default_environment(name), *(r.environment for r in routes))))


def route_of(name: str, installed: Mapping[str, str]) -> Route | None:
    """Return the best route of a target that these packages (name -> version) permit, or None."""
    return next((route for route in entry(name).routes if route.fits(installed)), None)


def may_fork(name: str, installed: Mapping[str, str]) -> bool:
    """Whether a request for a target may be evaluated in a fork, with these packages."""
    route = route_of(name, installed) if name in TARGETS else None
    return route is None or route.forks


def environments() -> tuple[str, ...]:
    """Return the environments with a recipe of their own.

    These are the default ones of targets, CUDA_BUILD, and those of packages.
    """
    names = (name for target in TARGETS for name in environments_of(target))
    own = dict.fromkeys(name for name in names if name != records.DEFAULT_ENVIRONMENT)
    return (*own, CUDA_BUILD, *PACKAGE_ENVIRONMENTS)


def needs_cuda_build(target: records.Target) -> bool:
    """Whether a CPU build of torch cannot evaluate a target, although its device is declared.

    Autograd asks the accelerator for its current stream, which a CPU build does not have.
    """
    row = declared(target.device)
    return row is not None and row.kind == "cuda" and target.mode is records.Mode.TRAIN


def environment_variables(environment: str) -> Mapping[str, str]:
    """Return the variables that workers of an environment need for its targets.

    All its workers get them: one server serves all targets of an environment.
    """
    rows = (row for row in TARGETS.values() if row.environment == environment)
    return {name: value for row in rows for name, value in row.variables.items()}


def deadlines_of(target: str, deadlines: records.Deadlines) -> records.Deadlines:
    """Return the deadlines of a request; a longer one for `compile` also raises the total.

    Applying it twice changes nothing more.
    """
    field = TARGETS[target].compile_deadline if target in TARGETS else "compile_seconds"
    seconds: float = getattr(deadlines, field)
    if seconds == deadlines.compile_seconds:
        return deadlines
    more = max(seconds - deadlines.compile_seconds, 0.0)
    return msgspec.structs.replace(
        deadlines, compile_seconds=seconds, total_seconds=deadlines.total_seconds + more
    )


def in_default_environment(target: records.Target) -> bool:
    """Whether a target is in its default environment, or in that one with further packages.

    The environment of another route is none: it has another product, or gives a forecast.
    """
    default = default_environment(target.name)
    if default == records.DEFAULT_ENVIRONMENT and target.environment in PACKAGE_ENVIRONMENTS:
        return True
    return target.environment == default


def environment_option(request: records.Request) -> str:
    """Return ` --environment NAME` for commands that repeat a request, "" where it is not needed.

    A person's own model is placed nowhere by itself, so its environment is always named.
    """
    target = request.target
    if isinstance(request.model.build, records.FactoryBuild):
        by_itself = target.environment == default_environment(target.name)
    else:
        by_itself = in_default_environment(target)
    return "" if by_itself else f" --environment {target.environment}"


def target_label(target: records.Target) -> str:
    """Return the label of a target as it is printed: `dynamo`, `dynamo/train`.

    A selected backend follows the name: `neuron:trn2`; `dynamo+nested` is one with
    `nested_graph_breaks` on, `dynamo+not-nested` with it off. A device other than the CPU and a
    type other than the device's default follow: `dynamo/cuda:A100/float16`. An environment other
    than the default one follows at the end: `dynamo/train@torch-2.9`. Chosen shapes:
    `dynamo/eval/dynamic`.
    """
    is_default = target.mode_label == records.Mode.EVAL.value
    return _label(target, "" if is_default else f"/{target.mode_label}")


def target_label_value(target: records.Target) -> str:
    """Return the label `target` of metrics: without the mode, which is a separate label."""
    return _label(target, "")


def _label(target: records.Target, mode: str) -> str:
    backend = f":{target.backend}" if target.backend else ""
    nested = {None: "", True: "+nested", False: "+not-nested"}[target.nested_graph_breaks]
    device = "".join(f"/{part}" for part in device_parts(target))
    environment = "" if in_default_environment(target) else f"@{target.environment}"
    return f"{target.name}{backend}{nested}{mode}{device}{environment}"


def device_parts(target: records.Target) -> tuple[str, ...]:
    """Return a device other than the CPU, and a type other than the device's default."""
    device = () if target.device == CPU else (target.device,)
    dtype = () if target.dtype is default_dtype(target.device) else (target.dtype.value,)
    return device + dtype


def default_dtype(device: str) -> records.Dtype:
    """Return the type of weights on a device unless one is named.

    GPUs run models in the type of their configuration; on a CPU, float32 is the type that every
    operator has.
    """
    return records.Dtype.FLOAT32 if device == CPU else records.Dtype.CONFIG


@cache
def devices() -> tuple[records.DeclaredDevice, ...]:
    """Return the rows of `devices.toml`; the first of a kind is what its bare name means."""
    text = Path(__file__).with_name("devices.toml").read_text(encoding="utf-8")
    rows = (
        {**row, "memory_bytes": row["memory_gib"] * 2**30} for row in tomllib.loads(text)["device"]
    )
    return tuple(msgspec.convert(row, records.DeclaredDevice) for row in rows)


def device_kinds() -> tuple[str, ...]:
    """Return the kinds of devices that can be declared, each of which is the name of one."""
    return tuple(dict.fromkeys(row.kind for row in devices()))


@cache
def _device_names() -> dict[str, records.DeclaredDevice | None]:
    """`cpu`, `cuda`, `cuda:H100` … -> the device, in the order in which messages list them."""
    names: dict[str, records.DeclaredDevice | None] = {CPU: None}
    for row in devices():
        names.setdefault(row.kind, row)
        names[f"{row.kind}:{row.name}"] = row
    return names


def declared(name: str) -> records.DeclaredDevice | None:
    """Return the device that a request names; None for `cpu`. Raises UsageError if unknown."""
    return _device_names()[canonical(name)]


def canonical(name: str) -> str:
    """Return the one spelling of a device: `CUDA:h100` is `cuda:H100`, the default is `cuda`.

    Raises UsageError if it is unknown.
    """
    names = _device_names()
    spelled = next((known for known in names if known.lower() == name.lower()), None)
    if spelled is None:
        hint = did_you_mean(name, list(names))
        raise UsageError(f"no device {name!r}{hint}; known: {', '.join(names)}")
    row = names[spelled]
    return row.kind if row is not None and names[row.kind] == row else spelled


def check_device(target: records.Target) -> None:
    """Raise UsageError if a target cannot be evaluated for its device with these options.

    A target captures for a declared device if its catalogue row says so.
    """
    row = declared(target.device)
    if row is None:
        return
    if not TARGETS[target.name].captures_for_devices:
        able = ", ".join(name for name, entry in TARGETS.items() if entry.captures_for_devices)
        raise UsageError(
            f"{target.name} is not evaluated for {target.device}; targets that are: {able}"
        )
    if target.dtype is records.Dtype.BFLOAT16 and not row.bfloat16:
        raise UsageError(f"{row.product} has no bfloat16: choose --dtype float16 or float32")
    if target.dynamic and row.kind == "neuron":  # AWS's reference of torch.compile, SDK 2.33
        raise UsageError("TorchNeuron rejects dynamic=True: leave --dynamic out for this device")


def naming_options(request: records.Request) -> str:
    """Return ` --environment NAME --python-path DIR` as far as they are needed, otherwise "".

    The folder of `./FILE.py` and the current folder are searched without an option, and so are
    those of a model that a list names.
    """
    options = environment_option(request)
    build, alone = request.model.build, _searched_alone(request)
    if isinstance(build, records.FactoryBuild) and alone is not None:
        folders = (folder for folder in build.python_path if folder != alone)
        options += "".join(f" --python-path {shlex.quote(folder)}" for folder in folders)
    return options


def inputs_option(request: records.Request) -> str:
    """Return ` --inputs FILE` for a person's own model that was given inputs, otherwise "".

    A model of a list has its inputs there.
    """
    build = request.model.build
    if not isinstance(build, records.FactoryBuild) or _searched_alone(request) is None:
        return ""
    inputs = build.inputs or request.inputs_file
    return f" --inputs {shlex.quote(inputs)}" if inputs else ""


def _searched_alone(request: records.Request) -> str | None:
    """The folder that is searched for the model without an option; None for one of a list."""
    name, build = request.model.name, request.model.build
    if not isinstance(build, records.FactoryBuild):
        return None
    module = build.factory.partition(":")[0]
    if name == build.factory:
        return str(Path.cwd().resolve())
    path = name if name.endswith(".py") else name.rpartition(":")[0]
    if not path.endswith(".py"):
        return None
    # A file of a package is imported from the folder that contains the package.
    return str(Path(path).expanduser().resolve().parents[module.count(".")])
