"""Example inputs for an unknown model, made from its configuration and its forward.

There is one rule per argument name (`text.RULES`, `vision.RULES`, …): an argument that forty models
take is one rule. What no rule can make is data in `inputs/overrides/`. Rules see no class names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from compilewatch.errors import UnknownArgumentsError
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
from compilewatch.worker.example_inputs.files import inputs_to_toml, load_inputs_file, to_fake
from compilewatch.worker.example_inputs.labels import add_labels
from compilewatch.worker.example_inputs.libraries import library_inputs
from compilewatch.worker.example_inputs.signature import read_signature
from compilewatch.worker.model.overrides import Overrides
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
) -> ExampleInputs:
    """Return the arguments of one forward call of `module`; fake if `fake_mode` is given.

    Arguments in `without` are not made, unless they are in a saved file or of a factory.

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
    if request.inputs_file is not None:
        return load_inputs_file(Path(request.inputs_file), fake_mode)
    if isinstance(build, FactoryBuild) and build.inputs is not None:
        made = factory_inputs(build)
    elif isinstance(build, LibraryBuild) and (known := library_inputs(module, build)):
        made = known
    else:
        made = _derive(module, config, request, overrides, fake_mode, without, batch, length)
    return made if fake_mode is None else to_fake(made, fake_mode)


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
    context = Context(
        module=module,
        config=config,
        signature=read_signature(module),
        rules=RULES,
        required_rules=REQUIRED_RULES,
        fallback=generic.required_argument,
        train=request.target.mode is Mode.TRAIN,
        dropped=without,
        batch=batch,
    )
    tier = Tier.REAL if fake_mode is None else Tier.FAKE
    apply_overrides(context, overrides, request, tier)
    if context.length is None:
        context.limit_length(length)
    for name in context.signature.parameters:
        context.value(name)
    missing = tuple(n for n in context.signature.required if n not in context.values)
    if context.train and not missing:
        add_labels(context)
    made = ExampleInputs(
        strategy="+".join(context.strategies) or "signature",
        kwargs=context.values,
        dynamic_shapes=dynamic_shapes(context.values, context.batch),
    )
    if missing:
        raise UnknownArgumentsError(request.model.name, missing, made)
    return made


def summarize(inputs: ExampleInputs) -> tuple[TensorSummary, ...]:
    """Return name, shape and dtype of each tensor, and the value of other arguments."""
    named = {f"args[{i}]": v for i, v in enumerate(inputs.args)} | inputs.kwargs
    found: list[TensorSummary] = []
    for name, value in named.items():
        found += _summaries(name, value)
    return tuple(found)


def _summaries(name: str, value: Any) -> list[TensorSummary]:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return [TensorSummary(name=name, shape=tuple(value.shape), dtype=dtype)]
    if isinstance(value, (list, tuple)):
        return [s for i, v in enumerate(value) for s in _summaries(f"{name}[{i}]", v)]
    if isinstance(value, dict):
        return [s for k, v in value.items() for s in _summaries(f"{name}.{k}", v)]
    return [TensorSummary(name=name, value=repr(value))]
