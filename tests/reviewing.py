"""Texts that a reviewer reads: with SCREENS=write, tests write them anew instead of comparing."""

import os
from pathlib import Path


def assert_as_reviewed(content: str | bytes, path: Path) -> None:
    """A file beside a test has exactly this content; where it differs, pytest shows the lines."""
    data = content.encode() if isinstance(content, str) else content
    if os.environ.get("SCREENS") == "write":
        path.write_bytes(data)
    assert data.decode().split("\n") == path.read_text(encoding="utf-8").split("\n")
