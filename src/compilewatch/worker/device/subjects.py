"""Moves a model that was built on the CPU, with its inputs, to the device of its request."""

import dataclasses

import torch

from compilewatch.worker.device import torch_device
from compilewatch.worker.example_inputs.files import converted
from compilewatch.worker.example_inputs.files import to_fake as fake_inputs
from compilewatch.worker.model.construct import to_fake
from compilewatch.worker.model.fake_mode import InputAwareFakeMode
from compilewatch.worker.subject import Subject


def on_declared_device(subject: Subject) -> Subject:
    """Replace the real tensors of a subject by fake ones on the declared device of its request."""
    mode = InputAwareFakeMode(torch_device(subject.request.device))
    rebuilt = subject.rebuilt
    return dataclasses.replace(
        subject,
        module=to_fake(subject.module, mode),
        inputs=fake_inputs(subject.inputs, mode),
        fake_mode=mode,
        rebuilt=None if rebuilt is None else lambda: to_fake(rebuilt(), mode),
    )


def on_real_device(subject: Subject) -> Subject:
    """Move a subject with real tensors to the CUDA device of this machine."""
    device = torch_device(subject.request.device)

    def moved(value: torch.Tensor) -> torch.Tensor:
        return value.to(device)

    inputs, rebuilt = subject.inputs, subject.rebuilt
    return dataclasses.replace(
        subject,
        module=subject.module.to(device),
        inputs=dataclasses.replace(
            inputs,
            args=converted(inputs.args, moved, device),
            kwargs=converted(inputs.kwargs, moved, device),
        ),
        rebuilt=None if rebuilt is None else lambda: rebuilt().to(device),
    )
