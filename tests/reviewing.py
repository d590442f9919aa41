"""Texts that a reviewer reads: with SCREENS=write, tests write them anew instead of comparing."""

import difflib
import os
from pathlib import Path


def assert_as_reviewed(content: str | bytes, path: Path) -> None:
    """A file beside a test has exactly this content."""
    text = content if isinstance(content, str) else content.decode()
    if os.environ.get("SCREENS") == "write":
        path.write_text(text, encoding="utf-8")
    reviewed = path.read_text(encoding="utf-8")
    lines = difflib.unified_diff(reviewed.split("\n"), text.split("\n"), "reviewed", "now", n=1)
    assert text == reviewed, "\n".join(lines)
