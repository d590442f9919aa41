"""Requests: models, how they are built, and targets."""

from __future__ import annotations

import os
from typing import Any

from compilewatch.records.base import (
    Depth,
    Dtype,
    Mode,
    Part,
    Phase,
    Quantization,
    Record,
    Tier,
    Variants,
)
from compilewatch.records.devices import DeclaredDevice


class ClassBuild(Record, frozen=True, kw_only=True, tag="class"):
    """A class of Transformers, built from the defaults of its configuration class."""

    class_name: str


class ConfigBuild(Record, frozen=True, kw_only=True, tag="config"):
    """A class of Transformers built from a `config.json`.

    `config_file` is absolute; `config_sha256` is the digest of the canonical configuration (see
    `records.digests.canonical_config`). `weights` loads the real weights of `repo` at the model's
    revision; `trust_remote_code` is set only if a person listed the repository and revision.
    `adapter_file`, if given, is the absolute path of the `adapter_config.json` of a PEFT adapter
    that is put on the model, and `adapter_sha256` digests its content. `packages` are the
    distributions besides Transformers without which the model cannot be built. `class_module` is
    the module of one of them that has the class, None for a class of Transformers.
    """

    config_file: str
    config_sha256: str
    class_name: str | None = None
    repo: str | None = None
    weights: bool = False
    trust_remote_code: bool = False
    adapter_file: str | None = None
    adapter_sha256: str = ""
    packages: tuple[str, ...] = ()
    class_module: str | None = None


class FactoryBuild(Record, frozen=True, kw_only=True, tag="factory"):
    """`package.module:factory`, called without arguments, returns an `nn.Module`.

    `path` (absolute folders, joined by `os.pathsep`) is put on `sys.path`; `inputs` names a
    callable that returns a tuple of args, a dict of kwargs, or `(args, kwargs)`; `source_sha256`
    digests the factory's module file.
    """

    factory: str
    path: str | None = None
    inputs: str | None = None
    source_sha256: str = ""

    @property
    def python_path(self) -> tuple[str, ...]:
        """The folders of `path`."""
        return tuple(self.path.split(os.pathsep)) if self.path else ()


class LibraryBuild(Record, frozen=True, kw_only=True, tag="library"):
    """A model of another library than Transformers, by the name that the library gives it.

    `library` is a row of `sources.libraries` (`timm`, `diffusers`, …) and `name` an architecture,
    class or configuration there. `configuration`, if given, is the absolute path of the file or
    folder that a repository configures the model with, and `configuration_sha256` digests its
    content; otherwise the library's own configuration of that name is used.
    """

    library: str
    name: str
    configuration: str | None = None
    configuration_sha256: str = ""


class CallerBuild(Record, frozen=True, kw_only=True, tag="caller"):
    """An object of the process that called `compilewatch.check`; no other process can build it."""


Build = ClassBuild | ConfigBuild | FactoryBuild | LibraryBuild | CallerBuild


class ModelSpec(Record, frozen=True, kw_only=True):
    """One model. `name` is `org/model` or the name of a class, and is unique in a plan.

    `inputs_file` is the absolute path of the model's saved inputs (`.toml` or `.safetensors`). A
    model with a `skip_reason` is not evaluated. A model with an `error` cannot be evaluated,
    because its entry in a list is wrong. `part` is the part of a Hub repository (`checkpoint`) that
    the model is, None for a model of another source; `component` names a component of a pipeline.
    `quantization` is that of the checkpoint's weights; its class is built unquantised without them.
    """

    source: str
    name: str
    build: Build
    architecture: str | None = None
    family: str = "unknown"
    task: str = "unknown"
    revision: str | None = None
    downloads: int | None = None
    license: str | None = None
    gated: bool = False
    checkpoint: str | None = None
    skip_reason: str | None = None
    error: str | None = None
    inputs_file: str | None = None
    provenance: dict[str, str] = {}
    part: Part | None = None
    component: str = ""
    quantization: Quantization | None = None

    @property
    def repository(self) -> str | None:
        """The Hub repository that the model is a part of, or that could not be resolved."""
        return self.checkpoint if self.part is not None or self.source == "hub" else None

    @property
    def is_dequantized(self) -> bool:
        """Whether the checkpoint is quantised, and the class is built without that."""
        loads = isinstance(self.build, ConfigBuild) and self.build.weights
        return self.quantization is not None and not loads


DEFAULT_ENVIRONMENT = "default"
"""The name of the interpreter that runs compilewatch itself."""


class Target(Record, frozen=True, kw_only=True):
    """A compile target with its options and the environment in which it runs.

    `backend` None means the default backend of the target. `environment` is part of what a result
    is about: one run may evaluate a model on the same target in two environments. `dynamic` is that
    of `torch.compile`: with None, a size becomes dynamic when it changes.
    `nested_graph_breaks` sets torch's configuration of that name, whether Dynamo compiles functions
    that a graph break interrupts; None leaves torch's default. `device` is the device that the
    model's tensors are on: `cpu`, `cuda`, or `cuda:NAME` (`contract.devices`).
    """

    name: str = "dynamo"
    mode: Mode = Mode.EVAL
    dynamic: bool | None = None
    backend: str | None = None
    environment: str = DEFAULT_ENVIRONMENT
    nested_graph_breaks: bool | None = None
    device: str = "cpu"
    dtype: Dtype = Dtype.FLOAT32

    @property
    def mode_label(self) -> str:
        """The mode, and the shapes if they are chosen: `eval`, `train/dynamic`, `eval/static`."""
        shapes = {None: "", True: "/dynamic", False: "/static"}[self.dynamic]
        return f"{self.mode.value}{shapes}"


class Deadlines(Record, frozen=True, kw_only=True):
    """Wall-clock limits of a child by phase, in seconds; `total` limits all phases together."""

    setup_seconds: float = 60.0
    create_seconds: float = 180.0
    inputs_seconds: float = 60.0
    eager_seconds: float = 180.0
    compile_seconds: float = 600.0
    compare_seconds: float = 180.0
    profile_seconds: float = 300.0
    total_seconds: float = 1200.0
    neuron_compile_seconds: float = 7200.0

    def of(self, phase: Phase) -> float:
        """Return the limit of a phase in seconds; `done` (tear-down) has the limit of `setup`."""
        if phase is Phase.DONE:
            return self.setup_seconds
        return float(getattr(self, f"{phase.value}_seconds"))


class Work(Record, frozen=True, kw_only=True):
    """What an extra does with a model instead of the target: a name in its row, and options."""

    name: str
    options: dict[str, Any]


class Request(Record, frozen=True, kw_only=True):
    """Evaluate this model on this target, in the target's environment.

    `key` is a hash of everything that can change the result. Deadlines and the memory limit are not
    part of it, because they can only prevent a result. `inputs_file` is a file of saved inputs
    (`.toml` or `.safetensors`), `overrides_dir` the folder of a project's own overrides and
    `neuron_operators` its file of operators that neuronx-cc is documented to reject, besides those
    in `data`; all three are absolute paths. `device` describes the declared device of the target;
    None for the CPU. With `work`, an extra does something else with the model, and the result only
    says whether that worked.
    """

    model: ModelSpec
    target: Target
    key: str
    device: DeclaredDevice | None = None
    tier: Tier = Tier.AUTO
    depth: Depth = Depth.FULL
    variants: Variants = Variants.MAIN
    deadlines: Deadlines = Deadlines()
    memory_limit_bytes: int = 8 * 2**30
    inputs_file: str | None = None
    overrides_dir: str | None = None
    neuron_operators: str | None = None
    keep_artifacts: bool = True
    work: Work | None = None
