"""The forms in which users name models of their own."""

from __future__ import annotations

import re

FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
"""`package.module:callable`."""

FORMS = "name a folder with a config.json, a file ./FILE.py or ./FILE.py:NAME, or MODULE:FACTORY"


def is_file(name: str) -> bool:
    """Whether a name is that of a Python file, which no model of a source has."""
    path, attribute = split(name)
    return path.endswith(".py") or bool(attribute and is_path(path))


def split(name: str) -> tuple[str, str]:
    """Return the path or module of `./FILE.py:NAME`, and the name, which may be empty."""
    path, _, attribute = name.rpartition(":") if ":" in name else (name, "", "")
    return path, attribute


def is_path(text: str) -> bool:
    """Whether a text can only be a path."""
    return text.startswith((".", "/", "~"))
