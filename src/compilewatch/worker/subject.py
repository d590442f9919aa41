"""The input of a target: a built model with its example inputs, and the current phase."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
import torch._dynamo
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from compilewatch.records import Mode, Phase, Request, Tier
from compilewatch.worker import forked

_Value = TypeVar("_Value")


@dataclass(frozen=True, kw_only=True)
class ExampleInputs:
    """Arguments for one forward call of one model.

    `strategy` names how they were made (`text`, `vision`, `file`, `factory`, …);
    `dynamic_shapes` maps an argument name to the dimensions that may vary (`{dim: "batch"}`).
    `guessed` says what was guessed, a line for each tensor; without it, a person or a reviewed rule
    is responsible for the inputs. `generation` are the arguments of the model's own `generate`,
    where they are others. Of the tokens of each text, `placeholders` stand for images or sounds.
    """

    strategy: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    dynamic_shapes: dict[str, dict[int, str]] = field(default_factory=dict)
    guessed: tuple[str, ...] = ()
    generation: dict[str, Any] = field(default_factory=dict)
    placeholders: int = 0


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model that is ready for a target.

    `fake_mode` is the mode that its parameters and inputs were made under, None in the real tier.
    `enter` announces a phase, which starts its deadline. `artifacts` is an existing folder for this
    request only. In train mode `module` is in `.train()`, and `inputs` contain labels if the model
    takes them. `rebuilt` makes the module anew, where no fork is possible. `maker` makes inputs in
    the place of the module, where rules for that call it. `later` are the inputs of the calls after
    the first one; None for one more call with equal inputs.

    Nothing has called the module: `in_fork` keeps it so. Only the last call that a target makes may
    be without a fork.
    """

    request: Request
    module: nn.Module
    inputs: ExampleInputs
    fake_mode: FakeTensorMode | None
    artifacts: Path
    enter: Callable[[Phase], None]
    rebuilt: Callable[[], nn.Module] | None = None
    maker: nn.Module | None = None
    later: tuple[ExampleInputs, ...] | None = None

    owns_process: ClassVar[bool] = True
    """Whether the process exists for this subject only, so that torch may be adjusted to it."""

    def tensors(self) -> AbstractContextManager[Any]:
        """Return the context in which its tensors may be used: the fake mode, or an empty one."""
        return self.fake_mode if self.fake_mode is not None else nullcontext()

    def gradients(self) -> AbstractContextManager[Any]:
        """Return the context of its calls: without gradients, but in train mode."""
        training = self.request.target.mode is Mode.TRAIN
        return nullcontext() if training else torch.no_grad()

    def call(self, function: Callable[..., _Value]) -> _Value:
        """Call the module, or what stands for it, in the mode of the request; no way back."""
        with self.gradients():
            return function(*self.inputs.args, **self.inputs.kwargs)

    def copied_inputs(self) -> ExampleInputs:
        """Return the inputs with copies of their tensors, which a call may change."""
        copies: dict[int, torch.Tensor] = {}

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) not in copies:
                copy = tensor.detach().clone(memory_format=torch.preserve_format)
                copies[id(tensor)] = copy.requires_grad_(tensor.requires_grad)
            return copies[id(tensor)]

        with self.tensors(), torch.no_grad():
            args, kwargs = tree_map_only(
                torch.Tensor, copied, (self.inputs.args, self.inputs.kwargs)
            )
        return replace(self.inputs, args=args, kwargs=kwargs)

    def forget(self) -> None:
        """Let Dynamo forget what it has compiled in this process."""
        torch._dynamo.reset()

    def can_fork(self) -> bool:
        """Whether a call can have a fork of this process: a device in use does not survive it."""
        in_use = self.request.device is not None and self.request.tier is Tier.REAL
        return forked.possible() and not in_use

    def in_fork(
        self,
        function: Callable[[Subject], _Value],
        kind: Any,
        *,
        limit_seconds: float | None = None,
        beside_threads: bool = False,
    ) -> _Value:
        """Call `function` with this subject in a fork, so that it leaves nothing in this process.

        See `forked.in_fork` for `kind`, the limit and errors. The last phase that the fork enters
        is entered here too. Where a fork is not possible, because imports or a device have started
        threads, the call is made here, unless it needs a fork also `beside_threads`: with a module
        and tensors of its own, which cannot restore globals.
        """
        if not beside_threads and not self.can_fork():
            module = self.rebuilt() if self.rebuilt is not None else self.module
            return function(replace(self, module=module, inputs=self.copied_inputs()))
        entered: list[str] = []

        def enter(phase: Phase) -> None:
            entered.append(phase.value)
            self.enter(phase)

        inside = replace(self, enter=enter)
        try:
            return forked.in_fork(
                lambda: function(inside), kind, entered, limit_seconds=limit_seconds
            )
        finally:
            if entered:
                self.enter(Phase(entered[-1]))
