"""Refuses to import the packages of all extras, as if none were installed."""

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from compilewatch.extras import EXTRAS

MODULES = frozenset(module for extra in EXTRAS.values() for module in extra.modules) | {"botocore"}

ROOT = Path(__file__).parents[1]


class Refusing(importlib.abc.MetaPathFinder):
    """Comes before all other finders."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def refuse() -> None:
    """Refuse from now on, in this process."""
    assert not MODULES & sys.modules.keys()
    sys.meta_path.insert(0, Refusing())
