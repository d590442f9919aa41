"""Moves a model that was built on the CPU, with its inputs, to the device of its request."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from compilewatch.worker.device import torch_device
from compilewatch.worker.example_inputs.files import converted
from compilewatch.worker.example_inputs.files import to_fake as fake_inputs
from compilewatch.worker.model.construct import to_fake
from compilewatch.worker.model.fake_mode import InputAwareFakeMode
from compilewatch.worker.subject import Subject


def on_declared_device(subject: Subject) -> Subject:
    """Replace the real tensors of a subject by fake ones on the declared device of its request."""
    mode = InputAwareFakeMode(torch_device(subject.request.device))
    made = dataclasses.replace(subject, inputs=fake_inputs(subject.inputs, mode), fake_mode=mode)
    return _moved(made, lambda module: to_fake(module, mode))


def on_device(subject: Subject, device: torch.device, *, inputs_only: bool = False) -> Subject:
    """Move a subject with real tensors to a device of this machine."""

    def moved(value: Any) -> Any:
        return converted(value, lambda tensor: tensor.to(device), device)

    here = subject.inputs
    inputs = dataclasses.replace(
        here,
        args=moved(here.args),
        kwargs=moved(here.kwargs),
        generation=moved(here.generation),
    )
    subject = dataclasses.replace(subject, inputs=inputs)
    return subject if inputs_only else _moved(subject, lambda module: module.to(device))


def _moved(subject: Subject, move: Callable[[nn.Module], nn.Module]) -> Subject:
    rebuilt = subject.rebuilt
    return dataclasses.replace(
        subject,
        module=move(subject.module),
        rebuilt=None if rebuilt is None else lambda: move(rebuilt()),
    )
