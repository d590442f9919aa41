"""Devices that a result can be about."""

from __future__ import annotations

from compilewatch.records.base import Record


class DeclaredDevice(Record, frozen=True, kw_only=True):
    """A CUDA device as models see it, without its presence on this machine.

    `product` is the name that `torch.cuda.get_device_name` returns, `capability` the compute
    capability (major, minor), and `bfloat16` whether its tensor cores have that type.
    """

    name: str
    product: str
    capability: tuple[int, int]
    memory_bytes: int
    multiprocessors: int
    bfloat16: bool
