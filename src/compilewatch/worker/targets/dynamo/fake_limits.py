"""Differences of fake tensors, in eager code between graphs, that torch does not report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from torch._subclasses.fake_tensor import FakeTensor

from compilewatch.worker.targets import FakeUnsupportedError


@contextmanager
def rejected_deepcopy() -> Iterator[None]:
    """Make `copy.deepcopy` of a fake tensor raise FakeUnsupportedError.

    It copies the fake mode with the tensor (torch 2.13 to 2.15), in Python code that Dynamo then
    compiles, which causes graph breaks that real tensors do not cause.
    """

    def reject(_self: FakeTensor, _memo: dict[int, Any]) -> NoReturn:
        raise FakeUnsupportedError("the model copies a tensor with copy.deepcopy")

    own = FakeTensor.__dict__.get("__deepcopy__")
    FakeTensor.__deepcopy__ = reject
    try:
        yield
    finally:
        if own is None:
            del FakeTensor.__deepcopy__
        else:
            FakeTensor.__deepcopy__ = own
