"""Example inputs for an unknown model, made from its configuration and its forward.

There is one rule per argument name (`text.RULES`, `vision.RULES`, …): an argument that forty models
take is one rule. What no rule can make is data in `data/overrides/`. Rules see no class names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from compilewatch.contract.targets import naming_options
from compilewatch.errors import UnknownArgumentsError, WrongGuessError
from compilewatch.records import FactoryBuild, LibraryBuild, Mode, Request, TensorSummary, Tier
from compilewatch.worker.example_inputs import (
    audio,
    documents,
    generic,
    multimodal,
    state,
    text,
    time_series,
    vision,
)
from compilewatch.worker.example_inputs.applied import apply_overrides
from compilewatch.worker.example_inputs.context import BATCH, Context, Rule
from compilewatch.worker.example_inputs.dynamic import dynamic_shapes
from compilewatch.worker.example_inputs.factory import factory_inputs
from compilewatch.worker.example_inputs.fakes import holds_state
from compilewatch.worker.example_inputs.files import inputs_to_toml, load_inputs_file, to_fake
from compilewatch.worker.example_inputs.guess import guessed_inputs
from compilewatch.worker.example_inputs.guess.trial import tried_on_real
from compilewatch.worker.example_inputs.labels import add_labels
from compilewatch.worker.example_inputs.libraries import inputs_of_its_library, library_inputs
from compilewatch.worker.example_inputs.signature import read_signature
from compilewatch.worker.example_inputs.specs import attributes_of
from compilewatch.worker.model.overrides import Overrides
from compilewatch.worker.model.resolve import MissingPackageError, base_of, missing_package
from compilewatch.worker.model.shrink import is_config
from compilewatch.worker.subject import ExampleInputs

__all__ = [
    "UnknownArgumentsError",
    "inputs_to_toml",
    "load_inputs_file",
    "make_inputs",
    "summarize",
]

MODULES = (text, vision, audio, documents, time_series, multimodal, state)

RULES: dict[str, Rule] = {name: rule for m in MODULES for name, rule in m.RULES.items()}
REQUIRED_RULES: dict[str, Rule] = {
    **time_series.REQUIRED_RULES,
    **vision.REQUIRED_RULES,
    **audio.REQUIRED_RULES,
}


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
        inputs = load_inputs_file(Path(request.inputs_file), None)
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
        fallback=generic.required_argument if of_transformers else None,
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
    if best.trial.passed:
        return _with_labels(context, best.inputs)
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


def _with_labels(context: Context, inputs: ExampleInputs) -> ExampleInputs:
    """Add the labels that a forward takes, to train it."""
    if not context.train:
        return inputs
    context.values = dict(inputs.kwargs)
    add_labels(context)
    return replace(inputs, kwargs=context.values)


def summarize(inputs: ExampleInputs) -> tuple[TensorSummary, ...]:
    """Return name, shape and dtype of each tensor, and the value of other arguments."""
    named = {f"args[{i}]": v for i, v in enumerate(inputs.args)} | inputs.kwargs
    summaries: list[TensorSummary] = []
    for name, value in named.items():
        summaries += _summaries(name, value)
    return tuple(summaries)


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
