"""What fake tensors do differently, in eager code between graphs, without saying so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from torch._subclasses.fake_tensor import FakeTensor

from compilewatch.worker.targets import FakeUnsupportedError


@contextmanager
def refused_deepcopy() -> Iterator[None]:
    """Have `copy.deepcopy` of a fake tensor raise FakeUnsupportedError.

    It copies the fake mode along with the tensor (torch 2.13 to 2.15), by Python code that Dynamo
    then tries to compile: breaks appear that no real tensor makes.
    """

    def refuse(_self: FakeTensor, _memo: dict[int, Any]) -> NoReturn:
        raise FakeUnsupportedError("the model copies a tensor with copy.deepcopy")

    own = FakeTensor.__dict__.get("__deepcopy__")
    FakeTensor.__deepcopy__ = refuse
    try:
        yield
    finally:
        if own is None:
            del FakeTensor.__deepcopy__
        else:
            FakeTensor.__deepcopy__ = own
