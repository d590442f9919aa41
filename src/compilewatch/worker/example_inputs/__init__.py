"""Example inputs of a model: from a file, a callable, its library, rules, or guessed.

The rules (`rules`, `media`) make the arguments of an unknown model of Transformers from its
configuration and its forward; `guess` does so for a module of any other library. Overrides of
inputs are `[override.inputs]` in `data/overrides/*.toml`: each key is an argument with a table
(`files` has the format), whose sizes may be `batch`, `sequence` or `config.…` (for a list, its
length), or one of the settings of `AppliedSettings`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from compilewatch.contract.libraries import LIBRARIES
from compilewatch.contract.targets import naming_options
from compilewatch.errors import ConfigError, InputsError, UnknownArgumentsError, WrongGuessError
from compilewatch.records import (
    Depth,
    FactoryBuild,
    LibraryBuild,
    Mode,
    Request,
    TensorSummary,
    Tier,
)
from compilewatch.worker.example_inputs.context import (
    BATCH,
    Context,
    dynamic_shapes,
    read_signature,
)
from compilewatch.worker.example_inputs.files import (
    attributes_of,
    from_spec,
    holds_state,
    inputs_to_toml,
    load_inputs_file,
    size_of,
    to_fake,
)
from compilewatch.worker.example_inputs.guess import guessed_inputs
from compilewatch.worker.example_inputs.guess.trial import tried_on_real
from compilewatch.worker.example_inputs.labels import add_labels
from compilewatch.worker.example_inputs.rules import (
    REQUIRED_RULES,
    RULES,
    filled_cache,
    required_argument,
)
from compilewatch.worker.model.libraries import library
from compilewatch.worker.model.overrides import Overrides, Scope
from compilewatch.worker.model.resolve import (
    MissingPackageError,
    base_of,
    import_own,
    missing_package,
)
from compilewatch.worker.model.shrink import is_config
from compilewatch.worker.subject import ExampleInputs

__all__ = [
    "UnknownArgumentsError",
    "inputs_to_toml",
    "load_inputs_file",
    "make_inputs",
    "summarize",
]


def make_inputs(
    module: nn.Module,
    config: Any | None,
    request: Request,
    overrides: Overrides,
    fake_mode: FakeTensorMode | None,
    *,
    without: frozenset[str] = frozenset(),
    batch: int = BATCH,
    length: int | None = None,
    real: Callable[[], nn.Module] | None = None,
) -> ExampleInputs:
    """Return the arguments of one forward call of `module`; fake if `fake_mode` is given.

    `real` builds the module with real tensors, for the call that confirms a guess. Arguments in
    `without` are not made, unless they are in a saved file or of a factory.

    A saved file of the request has precedence, then the callable of a factory or what its library
    knows, then overrides and rules. Without `fake_mode`, inputs have real values even if the module
    is fake. Rules make `batch` rows and texts of `length` tokens, unless an override says
    otherwise.

    Raises InputsError if the forward needs an argument that nothing makes, or if a file or callable
    is wrong, and ConfigError for a malformed override. If a rule calls the model (how many features
    an image has, what it predicts), the model's errors propagate, including those of fake tensors
    without values.
    """
    build = request.model.build
    module = base_of(module, request)
    if request.inputs_file is not None:
        inputs = load_inputs_file(Path(request.inputs_file))
    elif isinstance(build, FactoryBuild) and build.inputs is not None:
        inputs = factory_inputs(build)
    elif isinstance(build, LibraryBuild) and (known := library_inputs(module, build)):
        inputs = known
    elif isinstance(build, FactoryBuild) and (known := inputs_of_its_library(module)):
        inputs = replace(known, guessed=tuple(map(repr, summarize(known))))
    else:
        inputs = _derive(module, config, request, overrides, fake_mode, without, batch, length)
    if inputs.guessed and fake_mode is not None and real is not None:
        inputs = _confirmed(inputs, request, real)
    _refuse_empty(module, inputs, request)
    return inputs if fake_mode is None else to_fake(inputs, fake_mode)


def _refuse_empty(module: nn.Module, inputs: ExampleInputs, request: Request) -> None:
    """Raise UnknownArgumentsError for a call that gives no tensor: a verdict would say nothing.

    A forward without parameters makes its own tensors. A person may give numbers only.
    """
    if not inspect.signature(module.forward).parameters:
        return
    if inputs.strategy in ("file", "factory"):
        empty = not inputs.args and not inputs.kwargs
    else:
        empty = not any(map(_holds_tensor, tree_leaves((inputs.args, inputs.kwargs))))
    if empty:
        raise UnknownArgumentsError(request.model.name, (), inputs, naming_options(request))


def _holds_tensor(value: Any) -> bool:
    """Whether a value is a tensor, or an object with tensors (a graph, a session)."""
    return isinstance(value, torch.Tensor) or attributes_of(value) is not None or holds_state(value)


def _derive(
    module: nn.Module,
    config: Any | None,
    request: Request,
    overrides: Overrides,
    fake_mode: FakeTensorMode | None,
    without: frozenset[str],
    batch: int,
    length: int | None,
) -> ExampleInputs:
    of_transformers = is_config(config)
    context = Context(
        module=module,
        config=config if of_transformers else None,
        signature=read_signature(module),
        rules=RULES,
        required_rules=REQUIRED_RULES,
        fallback=required_argument if of_transformers else None,
        train=request.target.mode is Mode.TRAIN,
        dropped=without,
        batch=batch,
    )
    tier = Tier.REAL if fake_mode is None else Tier.FAKE
    apply_overrides(context, overrides, request, tier)
    if context.length is None:
        context.limit_length(length)
    if not of_transformers:
        return _guess(context, request, fake_mode)
    for name in context.signature.parameters:
        context.value(name)
    missing = tuple(n for n in context.signature.required if n not in context.values)
    if context.train and not missing:
        add_labels(context)
    inputs = ExampleInputs(
        strategy="+".join(context.strategies) or "signature",
        kwargs=context.values,
        dynamic_shapes=dynamic_shapes(context.values, context.batch),
    )
    if missing:
        where = naming_options(request)
        raise UnknownArgumentsError(request.model.name, missing, inputs, where)
    return inputs


def _guess(context: Context, request: Request, fake_mode: FakeTensorMode | None) -> ExampleInputs:
    """Return guessed inputs that the module accepts. Raises WrongGuessError if none are found."""
    best = guessed_inputs(context, fake_mode or context.fake_mode)
    if best.trial.passed and context.train:
        context.values = dict(best.inputs.kwargs)
        add_labels(context)
        return replace(best.inputs, kwargs=context.values)
    if best.trial.passed:
        return best.inputs
    if best.trial.code == "missing_package":
        raise missing_package(ImportError(best.trial.message)) or MissingPackageError(
            best.trial.line
        )
    where = naming_options(request)
    if not best.inputs.args and not best.inputs.kwargs:
        missing = context.signature.required
        raise UnknownArgumentsError(request.model.name, missing, best.inputs, where)
    raise WrongGuessError(request.model.name, best.inputs, best.trial.line, where)


def _confirmed(
    inputs: ExampleInputs, request: Request, real: Callable[[], nn.Module]
) -> ExampleInputs:
    """Return a guess that real tensors accept. Raises WrongGuessError for one that they reject."""
    trial = tried_on_real(real, inputs, gradients=request.target.mode is Mode.TRAIN)
    if trial is None:
        return replace(inputs, strategy=f"{inputs.strategy}, tried on fake tensors only")
    if not trial.passed and trial.code not in ("out_of_memory", "missing_package"):
        raise WrongGuessError(request.model.name, inputs, trial.line, naming_options(request))
    return inputs


def summarize(inputs: ExampleInputs) -> tuple[TensorSummary, ...]:
    """Return name, shape and dtype of each tensor, and the value of other arguments."""
    named = {f"args[{i}]": v for i, v in enumerate(inputs.args)} | inputs.kwargs
    return tuple(summary for name, value in named.items() for summary in _summaries(name, value))


def _summaries(name: str, value: Any) -> list[TensorSummary]:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return [TensorSummary(name=name, shape=tuple(value.shape), dtype=dtype)]
    if isinstance(value, (list, tuple)):
        return [s for i, v in enumerate(value) for s in _summaries(f"{name}[{i}]", v)]
    entries = value if isinstance(value, dict) else attributes_of(value)
    if entries is not None:
        return [s for k, v in entries.items() for s in _summaries(f"{name}.{k}", v)]
    return [TensorSummary(name=name, value=repr(value))]


# --- overrides ------------------------------------------------------------------------------------


class AppliedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of `[override.inputs]` that are not arguments.

    `drop`: arguments that keep their defaults. `batch`: rows, for models that require a number.
    `sequence`: tokens of text. `tokens`: the placeholder id of a medium (a number or `config.…`), 0
    for none. `features`: features per row of a medium, if the model has no method for it. `cache`:
    tokens in the cache that another model filled, for models that only read one.
    """

    drop: tuple[str, ...] = ()
    batch: int | None = None
    sequence: int | None = None
    tokens: dict[str, int | str] = {}
    features: dict[str, int] = {}
    cache: int | None = None


SETTINGS = frozenset(AppliedSettings.__struct_fields__)


def apply_overrides(ctx: Context, overrides: Overrides, request: Request, tier: Tier) -> None:
    """Apply the matching overrides to the context, before any rule runs.

    Raises ConfigError that names the model if a table is malformed or names no argument.
    """
    model_type = getattr(ctx.config, "model_type", "") or ""
    tables: dict[str, Any] = {}
    depth = request.depth if tier is Tier.FAKE else Depth.REDUCED
    scope = Scope(type(ctx.module).__name__, model_type, tier, depth, request.target.mode)
    for override in overrides.matching(scope):
        tables.update(override.inputs)
    if not tables:
        return
    try:
        settings = msgspec.convert(
            {k: v for k, v in tables.items() if k in SETTINGS}, AppliedSettings
        )
        ctx.dropped |= frozenset(settings.drop)
        ctx.batch = settings.batch or ctx.batch
        ctx.length = settings.sequence
        ctx.features = dict(settings.features)
        if settings.cache is not None:
            ctx.values["past_key_values"] = filled_cache(ctx, settings.cache)
        resolve = _resolver(ctx)
        ctx.tokens = {m: size_of("tokens", t, resolve) for m, t in settings.tokens.items()}
        for name, spec in tables.items():
            usable = name in ctx.signature.parameters and name not in ctx.dropped
            if name not in SETTINGS and usable:
                ctx.values[name] = from_spec(name, spec, resolve, ctx.dtype)
    except (msgspec.ValidationError, InputsError) as error:
        raise ConfigError(f"overrides: {request.model.name}: {error}") from None
    if len(tables) > len(SETTINGS & set(tables)):
        ctx.uses("override")


def check_inputs(table: dict[str, Any]) -> None:
    """Raise InputsError if a table of `[override.inputs]` is wrong for every model.

    Every name in an expression counts as two, so only the format is checked.
    """
    msgspec.convert({k: v for k, v in table.items() if k in SETTINGS}, AppliedSettings)
    for name, spec in table.items():
        if name not in SETTINGS:
            from_spec(name, spec, lambda _: 2, torch.float32)


def _resolver(ctx: Context) -> Any:
    def resolve(name: str) -> int:
        if name == "batch":
            return ctx.batch
        if name == "sequence":
            return ctx.sequence
        setting: Any = ctx.config
        for part in name.removeprefix("config.").split("."):
            setting = (
                setting.get(part) if isinstance(setting, dict) else getattr(setting, part, None)
            )
        if isinstance(setting, (list, tuple)):
            return len(setting)
        if not isinstance(setting, int):
            raise InputsError(f"{name!r} is not an integer of the configuration")
        return setting

    return resolve


# --- factories and libraries ----------------------------------------------------------------------


def factory_inputs(build: FactoryBuild) -> ExampleInputs:
    """Call `build.inputs`: a tuple is args, a dict kwargs, `(args, kwargs)` both, a tensor one arg.

    Raises InputsError if the name is not found, the callable fails, or it returns something else.
    """
    name = build.inputs or ""
    module_name, _, attribute = name.partition(":")
    try:
        make = getattr(import_own(build, module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputsError(f"inputs {name!r}: cannot be found: {error}") from None
    try:
        returned = make()
    except Exception as error:  # the user's code may raise anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputsError(f"inputs {name!r}: raised {reason}") from error
    args, kwargs = _split(name, returned)
    return ExampleInputs(strategy="factory", args=args, kwargs=kwargs)


def _split(name: str, returned: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(returned, torch.Tensor):
        return (returned,), {}
    if isinstance(returned, dict):
        return (), returned
    if isinstance(returned, tuple):
        if len(returned) == 2 and isinstance(returned[0], tuple) and isinstance(returned[1], dict):
            return returned
        return returned, {}
    raise InputsError(
        f"inputs {name!r}: returned {type(returned).__name__}; a tuple of args, a dict of "
        f"kwargs or (args, kwargs) is needed"
    )


KNOWN_BY_THEIR_MODULE = {row.module: row.name for row in LIBRARIES.values() if row.by_module}
"""Package -> library, of those that know from a module alone what it takes."""


def inputs_of_its_library(module: nn.Module) -> ExampleInputs | None:
    """Return what the library of a module's class gives it, whoever built the module; or None."""
    name = KNOWN_BY_THEIR_MODULE.get(type(module).__module__.partition(".")[0])
    if name is None:
        return None
    try:
        return library_inputs(module, LibraryBuild(library=name, name=type(module).__name__))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None  # a class that the library's rules do not cover


def library_inputs(module: nn.Module, build: LibraryBuild) -> ExampleInputs | None:
    """Return the arguments that a library gives its model, in the type of its weights; or None."""
    torch.manual_seed(0)
    call = library(build.library).inputs(module, build)
    if call is None or not (call.args or call.kwargs):
        return None
    floating = (p.dtype for p in module.parameters() if p.dtype.is_floating_point)
    dtype = next(floating, torch.float32)

    def typed(value: Any) -> Any:
        whole = not isinstance(value, torch.Tensor) or value.dtype is not torch.float32
        return value if whole else value.to(dtype)

    kwargs = {name: tree_map(typed, value) for name, value in call.kwargs.items()}
    return ExampleInputs(
        strategy=build.library,
        args=tuple(tree_map(typed, value) for value in call.args),
        kwargs=kwargs,
        dynamic_shapes=dynamic_shapes(kwargs, BATCH),
    )
