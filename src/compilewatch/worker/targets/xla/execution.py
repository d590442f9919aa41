"""Runs a subject on XLA's CPU device: what is compiled, how often, and whether it is correct."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch_xla
import torch_xla.debug.metrics as met
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from compilewatch.records import Numerics, Phase, Record
from compilewatch.worker.model.construct import preserved
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import numerics
from compilewatch.worker.targets.execution import (
    comparable,
    enlarged,
    forward,
    observed,
    observed_in_float64,
    samples,
)
from compilewatch.worker.targets.xla import device as xla_device
from compilewatch.worker.targets.xla.isolation import Enter


class Execution(Record, frozen=True, kw_only=True):
    """The result of running. Counts are of compiled graphs; `compile_seconds` of the first call.

    `draws`: the model draws random numbers. XLA's generator returns other numbers than the CPU's
    for the same seed, so they were drawn on the CPU, only for the comparison.
    """

    graphs: int
    compile_seconds: float
    recompiles_same_inputs: int
    recompiles: int | None
    draws: bool
    numerics: Numerics


def execute(subject: Subject, enter: Enter) -> Execution:
    """Make two identical calls and one with a larger batch, and compare; a step for `isolated`."""
    placed = xla_device.on_device(subject)
    graphs, seconds = _call(placed)
    again, _ = _call(xla_device.fed(placed, subject))
    enter(Phase.COMPARE)
    larger = _larger(subject)
    recompiles = _call(xla_device.fed(placed, larger))[0] if larger is not None else None
    draws = _draws(subject)
    return Execution(
        graphs=graphs,
        compile_seconds=seconds,
        recompiles_same_inputs=again,
        recompiles=recompiles,
        draws=draws,
        numerics=_numerics(subject, placed, draws),
    )


def _call(placed: Subject) -> tuple[int, float]:
    """Return graphs and seconds that one call compiled; nothing is pending before or after it."""
    with _ran(placed):
        return xla_device.compiled_graphs(), xla_device.compile_seconds()


@contextmanager
def _ran(placed: Subject) -> Iterator[Any]:
    """Yield the output of one call that has run; afterwards the module is restored."""
    with preserved(placed.module):
        placed.module.zero_grad(set_to_none=True)
        torch_xla.sync(wait=True)
        met.clear_all()
        output = forward(placed, placed.module, placed.inputs)
        torch_xla.sync(wait=True)
        yield output
    torch_xla.sync(wait=True)


def _larger(subject: Subject) -> Subject | None:
    """Return the subject with a batch larger by one, None if eager mode rejects it."""
    inputs = enlarged(subject.inputs)
    if inputs is None:
        return None
    with preserved(subject.module):
        try:
            forward(subject, subject.module, inputs)
        except Exception:  # noqa: BLE001  (model code, with inputs that may not fit)
            return None
    return replace(subject, inputs=inputs)


def _draws(subject: Subject) -> bool:
    before = torch.get_rng_state()
    with preserved(subject.module):
        forward(subject, subject.module, subject.inputs)
    return not torch.equal(before, torch.get_rng_state())


def _numerics(subject: Subject, placed: Subject, draws: bool) -> Numerics:
    def on_xla() -> dict[str, Any]:
        # The same call as before, and so the same graph: copies on the device would be another one.
        with _DrawnOnCpu() if draws else nullcontext(), _ran(xla_device.fed(placed, subject)) as y:
            results = comparable(placed, y)
            return {n: v.cpu() if isinstance(v, Tensor) else v for n, v in results.items()}

    return numerics.assess(
        lambda: observed(subject, subject.module),
        on_xla,
        lambda: observed_in_float64(subject),
        [partial(observed, single, subject.module) for single in samples(subject)],
    )


class _DrawnOnCpu(TorchDispatchMode):  # type: ignore[misc]
    """Makes every operator that draws random numbers use the CPU's generator."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if func._schema.name.endswith("_"):
            # In place: the old content is irrelevant, so it need not be copied from the device.
            drawn = func(torch.empty(args[0].shape, dtype=args[0].dtype), *args[1:], **kwargs)
            args[0].copy_(drawn)
            return args[0]
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        args, kwargs = tree_map_only(Tensor, Tensor.cpu, (args, kwargs))
        return tree_map_only(Tensor, lambda t: t.to(torch_xla.device()), func(*args, **kwargs))
