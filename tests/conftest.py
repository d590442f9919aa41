"""What needs more than this interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.sources.places import cache_folder

XLA_MISSING = "needs the environment xla: compilewatch env create xla"


@pytest.fixture(scope="session")
def xla_python() -> Path:
    """The interpreter of the environment xla."""
    python = cache_folder() / "environments" / "xla" / "venv" / "bin" / "python"
    if not python.exists():
        pytest.skip(XLA_MISSING)
    return python
