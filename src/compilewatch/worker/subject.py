"""What a target is given: a built model with its example inputs, and a way to say where it is."""

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
    """Arguments for one forward call, made for one model.

    `strategy` names how they were made (`text`, `vision`, `file`, `factory`, …);
    `dynamic_shapes` maps an argument name to the dimensions that may vary (`{dim: "batch"}`).
    """

    strategy: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    dynamic_shapes: dict[str, dict[int, str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model ready for a target.

    `fake_mode` is the mode its parameters and inputs were made under, None in the real tier.
    `enter` announces a phase (and starts its deadline). `artifacts` is an existing folder of this
    request alone. In train mode `module` is in `.train()` and `inputs` contain labels where the
    model takes them.
    """

    request: Request
    module: nn.Module
    inputs: ExampleInputs
    fake_mode: FakeTensorMode | None
    artifacts: Path
    enter: Callable[[Phase], None]

    def tensors(self) -> AbstractContextManager[Any]:
        """The context in which its tensors may be touched: the fake mode, or nothing."""
        return self.fake_mode if self.fake_mode is not None else nullcontext()
