"""Calling a subject, and what a call leaves to compare."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from compilewatch.worker.subject import ExampleInputs
from compilewatch.worker.targets.execution import enlarged
from tests.integration.worker.targets.conftest import MakeSubject

pytestmark = pytest.mark.torch


class Takes(nn.Module):
    def forward(self, x: Tensor, pixels: list[Tensor], flag: bool) -> Tensor:
        return x + pixels[0].mean() if flag else x


def test_a_larger_batch_has_one_more_row_wherever_it_is_named(make_subject: MakeSubject) -> None:
    inputs = ExampleInputs(
        strategy="test",
        kwargs={"x": torch.ones(2, 4), "pixels": [torch.ones(4, 2)], "flag": True},
        dynamic_shapes={"x": {0: "batch", 1: "sequence"}, "pixels": {1: "batch"}},
    )
    subject = replace(make_subject(Takes), inputs=inputs)
    larger = enlarged(subject)
    assert larger is not None
    assert larger.inputs.kwargs["x"].shape == (3, 4)
    assert larger.inputs.kwargs["pixels"][0].shape == (4, 3)
    assert larger.inputs.kwargs["flag"] is True
    assert inputs.kwargs["x"].shape == (2, 4)
    assert enlarged(replace(subject, inputs=replace(inputs, dynamic_shapes={}))) is None
