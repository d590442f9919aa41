"""The model of a proof, its inputs and its calls: the second part of each proof's text.

Each requirement is examined in a fork, so that its model has never been called.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
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

DIED: dict[str, Any] = {"raised": "the process ended"}


class ProofSubject:
    """A model, its inputs, and the fix. `compilable(model, args, kwargs, options)` is the fix."""

    def __init__(
        self,
        build: Callable[[int], torch.nn.Module],
        inputs: Callable[[str, int], tuple[tuple[Any, ...], dict[str, Any]]],
        compilable: Callable[..., contextlib.AbstractContextManager[None]],
        *,
        train: bool = False,
        drops: tuple[str, ...] = (),
    ) -> None:
        self.build, self.inputs, self.compilable = build, inputs, compilable
        self.train, self.drops = train, drops

    def unchanged(self, *_: Any) -> contextlib.AbstractContextManager[None]:
        """Take the place of the fix: the model as it is."""
        return contextlib.nullcontext()


class ProofCall:
    """A model that is called again and again, under a fix, and compiled if there is a backend."""

    def __init__(
        self,
        subject: ProofSubject,
        model: torch.nn.Module,
        fix: Callable[..., contextlib.AbstractContextManager[None]],
        backend: Any = None,
        *,
        whole: bool = False,
    ) -> None:
        self.subject, self.model, self.fix = subject, model, fix
        self.backend, self.whole = backend, whole
        self.run: Model | None = None if backend is not None else model
        self.options: dict[str, Any] = {}

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any], seed: int) -> Outcome:
        given = [list(args), dict(kwargs)]  # the fix may add arguments, which are not the caller's
        with self.fix(self.model, args, kwargs, self.options):
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


def untouched(function: Callable[[], Any], otherwise: Any = DIED) -> Any:
    """Return what a function returns in a fork; `otherwise` if the process ends before that."""
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(read)
        torch.set_num_threads(1)  # before threads of autograd race for the pool of a fork
        try:
            said = json.dumps(function())
        except BaseException as error:  # noqa: BLE001  (the parent reports it)
            said = json.dumps({"raised": words_of(error)})
        with os.fdopen(write, "w") as stream:
            stream.write(said)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else otherwise


def words_of(error: BaseException) -> str:
    """Return an exception in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def arguments(
    subject: ProofSubject, shape: str, seed: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    seeded(seed)
    return subject.inputs(shape, seed)
