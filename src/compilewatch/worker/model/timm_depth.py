"""Reduces the depth of timm's EfficientNets and MobileNets to one block of each kind.

timm builds them by name: their layers are neither in the configuration nor among the arguments that
a configuration can pass. A stage is a list of descriptions of blocks, which repeat.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from compilewatch.worker.model.architectures import sub_configs

BUILDER = "timm.models._efficientnet_builder"


@contextmanager
def one_block_of_each_kind(config: Any) -> Iterator[None]:
    """While active, timm builds each stage from its distinct blocks, in order (timm 1.0).

    Nothing changes for a `config` without a part that names a model of timm, nor without timm.
    """
    names_one = any(isinstance(vars(c).get("architecture"), str) for c in sub_configs(config))
    if not names_one or importlib.util.find_spec("timm") is None:
        yield
        return
    builder: Any = importlib.import_module(BUILDER)
    scale: Callable[..., list[dict[str, Any]]] = builder._scale_stage_depth

    def distinct(blocks: Sequence[dict[str, Any]], *_: Any) -> list[dict[str, Any]]:
        kinds = [block for i, block in enumerate(blocks) if block not in blocks[:i]]
        return scale(kinds, [1] * len(kinds))

    builder._scale_stage_depth = distinct
    try:
        yield
    finally:
        builder._scale_stage_depth = scale
