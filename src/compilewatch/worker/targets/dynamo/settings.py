"""Settings of Dynamo that a request may change."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch._dynamo

NESTED_GRAPH_BREAKS = "nested_graph_breaks"
"""Of `torch._dynamo.config`: compile the functions that a graph break interrupts, not the outermost
one only."""


def has_nested_graph_breaks() -> bool:
    """Whether this torch has the setting."""
    return hasattr(torch._dynamo.config, NESTED_GRAPH_BREAKS)


def nested_graph_breaks(enabled: bool | None) -> AbstractContextManager[Any]:
    """Return the context in which Dynamo compiles with the setting; None leaves torch's default.

    A torch without the setting does what `False` asks for; `True` is checked before.
    """
    if enabled is None or not has_nested_graph_breaks():
        return nullcontext()
    context: AbstractContextManager[Any] = torch._dynamo.config.patch(
        {NESTED_GRAPH_BREAKS: enabled}
    )
    return context
