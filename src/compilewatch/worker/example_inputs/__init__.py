"""Example inputs of a model: from a file, a callable, its library, rules, or guessed.

The rules (`rules`, `media`) make the arguments of an unknown model of Transformers from its
configuration and its forward; `guess` does so for a module of any other library. Overrides of
inputs are `[override.inputs]` in `data/overrides/*.toml`: each key is an argument with a table
(`files` has the format), whose sizes may be `batch`, `sequence` or `config.…` (for a list, its
length), or one of the settings of `AppliedSettings`.
"""

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

from compilewatch import records
from compilewatch.contract.libraries import LIBRARIES
from compilewatch.contract.targets import naming_options
from compilewatch.errors import ConfigError, InputsError, UnknownArgumentsError, WrongGuessError
from compilewatch.worker.example_inputs import files
from compilewatch.worker.example_inputs.context import BATCH, Context, dynamic_shapes
from compilewatch.worker.example_inputs.guess import guessed_inputs
from compilewatch.worker.example_inputs.guess.trial import tried_on_real
from compilewatch.worker.example_inputs.labels import add_labels
from compilewatch.worker.example_inputs.rules import filled_cache, value_of
from compilewatch.worker.model.libraries import library
from compilewatch.worker.model.overrides import matching
from compilewatch.worker.model.resolve import (
    MissingPackageError,
    base_of,
    import_own,
    missing_package,
)
from compilewatch.worker.subject import ExampleInputs


def make_inputs(
    module: nn.Module,
    request: records.Request,
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
    build, name, where = request.model.build, request.model.name, naming_options(request)
    train = request.target.mode is records.Mode.TRAIN
    module = base_of(module, request)
    if request.inputs_file is not None:
        inputs = files.load_inputs_file(Path(request.inputs_file))
    elif isinstance(build, records.FactoryBuild) and build.inputs is not None:
        inputs = _of_callable(build, build.inputs)
    elif isinstance(build, records.LibraryBuild) and (known := _of_library(module, build)):
        inputs = known
    elif isinstance(build, records.FactoryBuild) and (known := _of_its_library(module)):
        inputs = replace(known, guessed=tuple(map(repr, summarize(known))))
    else:
        context = Context(module, value_of, train=train, batch=batch, without=without)
        tier = records.Tier.REAL if fake_mode is None else records.Tier.FAKE
        _apply_overrides(context, request, tier)
        if context.length is None and length is not None:
            # As many tokens as the model has positions.
            of_text = context.number("max_position_embeddings", kind="text", default=length)
            context.length = min(length, of_text) if of_text > 1 else length
        if context.config is None:
            inputs = _guess(context, name, where, fake_mode)
        else:
            inputs = _derive(context, name, where)
    if inputs.guessed and fake_mode is not None and real is not None:
        trial = tried_on_real(real, inputs, gradients=train)
        if trial is None:
            strategy = f"{inputs.strategy}, tried on fake tensors only"
            inputs = replace(inputs, strategy=strategy)
        elif not trial.passed and trial.code not in ("out_of_memory", "missing_package"):
            raise WrongGuessError(name, inputs, trial.line, where)
    # Without a tensor, a verdict would say nothing. A forward without parameters makes its own
    # tensors, and a person may give numbers only.
    if inspect.signature(module.forward).parameters:
        given = tree_leaves((inputs.args, inputs.kwargs))
        of_person = inputs.strategy in ("file", "factory")
        if not (inputs.args or inputs.kwargs if of_person else any(map(_holds_tensor, given))):
            raise UnknownArgumentsError(name, (), inputs, where)
    return inputs if fake_mode is None else files.to_fake(inputs, fake_mode)


def _holds_tensor(value: Any) -> bool:
    """Whether a value is a tensor, or an object with tensors (a graph, a session)."""
    if isinstance(value, torch.Tensor):
        return True
    return files.attributes_of(value) is not None or files.holds_state(value)


def _derive(context: Context, name: str, where: str) -> ExampleInputs:
    """Return the inputs that rules make for a model of Transformers."""
    for argument in context.signature.parameters:
        context.value(argument)
    missing = tuple(n for n in context.signature.required if n not in context.values)
    if context.train and not missing:
        add_labels(context)
    inputs = ExampleInputs(
        strategy="+".join(context.strategies) or "signature",
        kwargs=context.values,
        dynamic_shapes=dynamic_shapes(context.values, context.batch),
        generation=context.generation,
        placeholders=context.placeholders,
    )
    if missing:
        raise UnknownArgumentsError(name, missing, inputs, where)
    return inputs


def _guess(
    context: Context, name: str, where: str, fake_mode: FakeTensorMode | None
) -> ExampleInputs:
    """Return guessed inputs that the module accepts. Raises WrongGuessError if none are found."""
    inputs, trial = guessed_inputs(context, fake_mode or context.fake_mode)
    if trial.passed:
        if context.train:
            context.values = dict(inputs.kwargs)
            add_labels(context)
            inputs = replace(inputs, kwargs=context.values)
        return inputs
    if trial.code == "missing_package":
        raise missing_package(ImportError(trial.message)) or MissingPackageError(trial.line)
    if not inputs.args and not inputs.kwargs:
        raise UnknownArgumentsError(name, context.signature.required, inputs, where)
    raise WrongGuessError(name, inputs, trial.line, where)


def summarize(inputs: ExampleInputs) -> tuple[records.TensorSummary, ...]:
    """Return name, shape and dtype of each tensor, and the value of other arguments."""
    named = {f"args[{i}]": v for i, v in enumerate(inputs.args)} | inputs.kwargs
    return tuple(summary for name, value in named.items() for summary in _summaries(name, value))


def _summaries(name: str, value: Any) -> list[records.TensorSummary]:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return [records.TensorSummary(name=name, shape=tuple(value.shape), dtype=dtype)]
    if isinstance(value, (list, tuple)):
        return [s for i, v in enumerate(value) for s in _summaries(f"{name}[{i}]", v)]
    entries = value if isinstance(value, dict) else files.attributes_of(value)
    if entries is not None:
        return [s for k, v in entries.items() for s in _summaries(f"{name}.{k}", v)]
    return [records.TensorSummary(name=name, value=repr(value))]


# --- overrides ------------------------------------------------------------------------------------


class AppliedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of `[override.inputs]` that are not arguments.

    `drop`: arguments that keep their defaults. `batch`: rows, for models that require a number.
    `sequence`: tokens of text. `tokens`: the placeholder id of a medium (a number or `config.…`), 0
    for none. `features`: features per row of a medium, if the model has no method for it. `cache`:
    tokens in the cache that another model filled, for models that only read one. `generation`: a
    table for each argument of `generate`, where those of the forward are others.
    """

    drop: tuple[str, ...] = ()
    batch: int | None = None
    sequence: int | None = None
    tokens: dict[str, int | str] = {}
    features: dict[str, int] = {}
    cache: int | None = None
    generation: dict[str, Any] = {}


SETTINGS = frozenset(AppliedSettings.__struct_fields__)


def _apply_overrides(ctx: Context, request: records.Request, tier: records.Tier) -> None:
    """Apply the matching overrides to the context, before any rule runs.

    Raises ConfigError that names the model if a table is malformed or names no argument.
    """
    model_type = getattr(ctx.config, "model_type", "") or ""
    tables: dict[str, Any] = {}
    depth = request.depth if tier is records.Tier.FAKE else records.Depth.REDUCED
    for override in matching(request, type(ctx.module).__name__, model_type, tier, depth):
        tables.update(override.inputs)
    arguments = {name: spec for name, spec in tables.items() if name not in SETTINGS}

    def resolve(name: str) -> int:
        if name in ("batch", "sequence"):
            return int(getattr(ctx, name))
        setting: Any = ctx.config
        for part in name.removeprefix("config.").split("."):
            is_table = isinstance(setting, dict)
            setting = setting.get(part) if is_table else getattr(setting, part, None)
        if isinstance(setting, (list, tuple)):
            return len(setting)
        if not isinstance(setting, int):
            raise InputsError(f"{name!r} is not an integer of the configuration")
        return setting

    try:
        settings = msgspec.convert(tables, AppliedSettings)  # which ignores other keys
        ctx.dropped |= frozenset(settings.drop)
        ctx.batch = settings.batch or ctx.batch
        ctx.length = settings.sequence
        ctx.features = dict(settings.features)
        if settings.cache is not None:
            ctx.values["past_key_values"] = filled_cache(ctx, settings.cache)
        ctx.tokens = {m: files.size_of("tokens", t, resolve) for m, t in settings.tokens.items()}
        for name, spec in settings.generation.items():
            ctx.generation[name] = files.from_spec(name, spec, resolve, ctx.dtype)
        for name, spec in arguments.items():
            if name in ctx.signature.parameters and name not in ctx.dropped:
                ctx.values[name] = files.from_spec(name, spec, resolve, ctx.dtype)
    except (msgspec.ValidationError, InputsError) as error:
        raise ConfigError(f"overrides: {request.model.name}: {error}") from None
    if arguments:
        ctx.uses("override")


# --- factories and libraries ----------------------------------------------------------------------


def _of_callable(build: records.FactoryBuild, name: str) -> ExampleInputs:
    """Call `name`: a tuple is args, a dict kwargs, `(args, kwargs)` both, a tensor one arg.

    Raises InputsError if the name is not found, the callable fails, or it returns something else.
    """
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
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    match returned:
        case (tuple(), dict()) if isinstance(returned, tuple):
            args, kwargs = returned
        case tuple():
            args = returned
        case dict():
            kwargs = returned
        case torch.Tensor():
            args = (returned,)
        case _:
            raise InputsError(
                f"inputs {name!r}: returned {type(returned).__name__}; a tuple of args, a dict of "
                f"kwargs or (args, kwargs) is needed"
            )
    return ExampleInputs(strategy="factory", args=args, kwargs=kwargs)


def _of_its_library(module: nn.Module) -> ExampleInputs | None:
    """Return what the library of a module's class gives it, whoever built the module; or None."""
    package = type(module).__module__.partition(".")[0]
    for row in LIBRARIES.values():
        if row.by_module and row.module == package:
            try:
                return _of_library(
                    module, records.LibraryBuild(library=row.name, name=type(module).__name__)
                )
            except (AttributeError, KeyError, TypeError, ValueError):
                return None  # a class that the library's rules do not cover
    return None


def _of_library(module: nn.Module, build: records.LibraryBuild) -> ExampleInputs | None:
    """Return the arguments that a library gives its model, in the type of its weights; or None."""
    torch.manual_seed(0)
    given = library(build.library).inputs(module, build)
    if not given:
        return None
    floating = (p.dtype for p in module.parameters() if p.dtype.is_floating_point)
    dtype = next(floating, torch.float32)

    def typed(value: Any) -> Any:
        whole = not isinstance(value, torch.Tensor) or value.dtype is not torch.float32
        return value if whole else value.to(dtype)

    given = tree_map(typed, given)
    args, kwargs = (given, {}) if isinstance(given, tuple) else ((), given)
    return ExampleInputs(
        strategy=build.library,
        args=args,
        kwargs=kwargs,
        dynamic_shapes=dynamic_shapes(kwargs, BATCH),
    )
