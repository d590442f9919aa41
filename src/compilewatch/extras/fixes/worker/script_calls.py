"""The model of a verification, its inputs and its calls: the third part of each script."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch._dynamo

from compilewatch.extras.fixes.worker.comparing import (
    Model,
    Outcome,
    called,
    restored_globals,
    seeded,
)

Step = tuple[bool, str]
"""Whether a requirement is met, and what was found."""

CALLS = (("first shape", 0), ("second shape", 0), ("first shape", 1), ("second shape", 1))
"""The shape and the seed of the inputs of each call, in order."""

SEEDS = (0, 1)
"""The seeds of the weights for which results are compared."""

SHAPES = tuple(dict.fromkeys(shape for shape, _ in CALLS))


class ScriptSubject:
    """A model, its inputs, and the fix. `compilable(model, args, kwargs, options)` is the fix."""

    def __init__(
        self,
        build: Callable[[int], torch.nn.Module],
        inputs: Callable[[str, int], tuple[tuple[Any, ...], dict[str, Any]]],
        compilable: Callable[..., contextlib.AbstractContextManager[Any]],
        *,
        train: bool = False,
        drops: tuple[str, ...] = (),
    ) -> None:
        self.build, self.inputs, self.compilable = build, inputs, compilable
        self.train, self.drops = train, drops

    def unchanged(
        self, _: Any, args: Any, kwargs: Any, *__: Any
    ) -> contextlib.AbstractContextManager[Any]:
        """Take the place of the fix: the model as it is."""
        return contextlib.nullcontext((args, kwargs))


class ScriptCall:
    """A model that is called again and again, under a fix, and compiled if there is a backend."""

    def __init__(
        self,
        subject: ScriptSubject,
        model: torch.nn.Module,
        fix: Callable[..., contextlib.AbstractContextManager[Any]],
        backend: Any = None,
        *,
        whole: bool = False,
    ) -> None:
        self.subject, self.model, self.fix = subject, model, fix
        self.backend, self.whole = backend, whole
        self.run: Model | None = None if backend is not None else model
        self.options: dict[str, Any] = {}

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any], seed: int) -> Outcome:
        given = [list(args), dict(kwargs)]
        with self.fix(self.model, args, kwargs, self.options) as (args, kwargs):
            if self.run is None:
                self.run = torch.compile(
                    self.model, backend=self.backend, fullgraph=self.whole, **self.options
                )
            return called(
                self.model,
                partial(self.run, *args, **kwargs),
                given,
                seed=seed,
                train=self.subject.train,
            )

    def all(self) -> list[Outcome]:
        """Call it with all shapes and seeds."""
        found = []
        with restored_globals(self.model):
            for number, (shape, seed) in enumerate(CALLS):
                found.append(self(*arguments(self.subject, shape, seed), seed=number))
        return found


def arguments(
    subject: ScriptSubject, shape: str, seed: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    seeded(seed)
    return subject.inputs(shape, seed)
