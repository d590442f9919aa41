"""compilewatch: a monitor of PyTorch compile compatibility. Its public names are in `__all__`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compilewatch.api.check import CheckResult, check, fix
    from compilewatch.api.publish import SweepSummary
    from compilewatch.api.sweep import sweep
    from compilewatch.errors import CompilewatchError
    from compilewatch.records import GraphBreak, Recompilation, Result

__version__ = "0.1.0"

__all__ = [
    "CheckResult",
    "CompilewatchError",
    "GraphBreak",
    "Recompilation",
    "Result",
    "SweepSummary",
    "__version__",
    "check",
    "fix",
    "sweep",
]

_MODULES = {
    "CheckResult": "compilewatch.api.check",
    "CompilewatchError": "compilewatch.errors",
    "GraphBreak": "compilewatch.records",
    "Recompilation": "compilewatch.records",
    "Result": "compilewatch.records",
    "SweepSummary": "compilewatch.api.publish",
    "check": "compilewatch.api.check",
    "fix": "compilewatch.api.check",
    "sweep": "compilewatch.api.sweep",
}
"""Where public names are defined. They are imported when they are used."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
