"""Which interpreter draws the monitor page."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from compilewatch.config import load_settings
from compilewatch.environments.creation import Tool
from compilewatch.extras.monitor import cli


@pytest.mark.parametrize("installed", [True, False])
def test_streamlit_of_the_extra_is_used_instead_of_an_environment(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SimpleNamespace() if installed else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    created: list[str] = []
    monkeypatch.setattr(Tool, "create", lambda self: created.append(self.name))

    python = cli._python(load_settings({"cache": str(tmp_path)}))

    assert created == ([] if installed else ["monitor"])
    assert (python == Path(sys.executable)) is installed
