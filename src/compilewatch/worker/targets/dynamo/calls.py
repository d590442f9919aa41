"""How a model is called: once, in train mode with a backward, and what follows the first call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from compilewatch.records import Mode
from compilewatch.worker.subject import ExampleInputs, Subject

_COPYABLE = (torch.Tensor, bool, int, float, complex, str, bytes, torch.dtype, torch.device)


def call_once(subject: Subject, module: Callable[..., Any]) -> None:
    """Call the (compiled) module once, in train mode also backward through its loss."""
    if subject.request.target.mode is Mode.EVAL:
        with torch.no_grad():
            module(*subject.inputs.args, **subject.inputs.kwargs)
        return
    loss = loss_of(module(*subject.inputs.args, **subject.inputs.kwargs))
    if loss is not None:
        loss.backward()


def loss_of(output: Any) -> torch.Tensor | None:
    """Return the model's `loss`, or the sum of its float outputs' means; None without gradient."""
    own = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(own, torch.Tensor) and own.requires_grad:
        return own.mean()
    means = [
        leaf.float().mean()
        for leaf in tree_leaves(output)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_floating_point()
    ]
    return torch.stack(means).sum() if means else None


def second_call(subject: Subject) -> Callable[[Callable[..., Any]], None] | None:
    """Return what follows the first call: the later calls, or one more with equal inputs.

    Equal inputs are copied now, because a call may change them. None if an argument holds the state
    of earlier calls, or anything else that is not known how to copy.
    """
    if subject.later is not None:
        return _later_calls(subject, subject.later)
    leaves = tree_leaves((subject.inputs.args, subject.inputs.kwargs))
    if not all(leaf is None or isinstance(leaf, _COPYABLE) for leaf in leaves):
        return None
    return _later_calls(subject, (subject.copied_inputs(),))


def _later_calls(
    subject: Subject, inputs: tuple[ExampleInputs, ...]
) -> Callable[[Callable[..., Any]], None]:
    def call(module: Callable[..., Any]) -> None:
        for number, call_inputs in enumerate(inputs, start=2):
            subject.before_call(number)
            subject.module.zero_grad(set_to_none=True)
            call_once(replace(subject, inputs=call_inputs), module)

    return call
