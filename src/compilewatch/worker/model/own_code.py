"""Importing a user's own module: never from bytecode of an earlier text of its file."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from compilewatch.records import FactoryBuild


def import_own(build: FactoryBuild, module: str) -> ModuleType:
    """Import `module` from the folders of `build`, and write no bytecode from now on.

    Python takes cached bytecode for current if the file has the size and the modification time, in
    whole seconds, that are noted there (the format of `.pyc` files, PEP 552). A file that is
    changed within the second in which it was imported, to a text of the same length, would get the
    verdict of its earlier text.

    Raises ImportError if there is no such module, and whatever its code raises.
    """
    sys.path[:0] = [folder for folder in build.python_path if folder not in sys.path]
    sys.dont_write_bytecode = True
    return importlib.import_module(module)
