"""The input of a target: a built model with its example inputs, and the current phase."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from compilewatch.records import Phase, Request


@dataclass(frozen=True, kw_only=True)
class ExampleInputs:
    """Arguments for one forward call of one model.

    `strategy` names how they were made (`text`, `vision`, `file`, `factory`, …);
    `dynamic_shapes` maps an argument name to the dimensions that may vary (`{dim: "batch"}`).
    """

    strategy: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    dynamic_shapes: dict[str, dict[int, str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model that is ready for a target.

    `fake_mode` is the mode that its parameters and inputs were made under, None in the real tier.
    `enter` announces a phase, which starts its deadline. `artifacts` is an existing folder for this
    request only. In train mode `module` is in `.train()`, and `inputs` contain labels if the model
    takes them.
    """

    request: Request
    module: nn.Module
    inputs: ExampleInputs
    fake_mode: FakeTensorMode | None
    artifacts: Path
    enter: Callable[[Phase], None]

    def tensors(self) -> AbstractContextManager[Any]:
        """Return the context in which its tensors may be used: the fake mode, or an empty one."""
        return self.fake_mode if self.fake_mode is not None else nullcontext()
