"""Resetting Dynamo between two captures of one process."""

from __future__ import annotations

import torch
import torch._dynamo
from torch._subclasses.fake_tensor import FakeTensorMode


def reset(*, keep_operators: bool) -> None:
    """Reset Dynamo; with `keep_operators`, keep what fake tensors know of operators.

    Fake tensors keep the sizes that each operator returned for given inputs, for the process.
    Since torch 2.15 `torch._dynamo.reset` forgets them, because they can hide an error: an in-place
    operator whose meta kernel wrongly resizes its input does so only when it is computed, not when
    it is looked up (https://github.com/pytorch/pytorch/pull/191418). Computing everything again
    takes a twentieth of a sweep. They may be kept if they were computed without such a change, see
    `InputAwareFakeMode.inputs_changed`, or by a capture that succeeded. An error ends with
    `forget`.
    """
    kept = dict(FakeTensorMode.cache) if keep_operators else {}
    torch._dynamo.reset()
    forget()  # torch before 2.15 does not
    FakeTensorMode.cache.update(kept)


def forget() -> None:
    """Forget what fake tensors know of operators, before the capture of another input variant."""
    FakeTensorMode.cache_clear()
