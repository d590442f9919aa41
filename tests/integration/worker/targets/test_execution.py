"""Calling a subject, and what a call leaves to compare."""

from __future__ import annotations

import pytest
import torch

from compilewatch.worker.subject import ExampleInputs
from compilewatch.worker.targets.execution import enlarged

pytestmark = pytest.mark.torch


def test_a_larger_batch_has_one_more_row_wherever_it_is_named() -> None:
    inputs = ExampleInputs(
        strategy="test",
        kwargs={"x": torch.ones(2, 4), "pixels": [torch.ones(4, 2)], "flag": True},
        dynamic_shapes={"x": {0: "batch", 1: "sequence"}, "pixels": {1: "batch"}},
    )
    larger = enlarged(inputs)
    assert larger is not None
    assert larger.kwargs["x"].shape == (3, 4)
    assert larger.kwargs["pixels"][0].shape == (4, 3)
    assert larger.kwargs["flag"] is True
    assert inputs.kwargs["x"].shape == (2, 4)
    assert enlarged(ExampleInputs(strategy="test", kwargs=inputs.kwargs)) is None
