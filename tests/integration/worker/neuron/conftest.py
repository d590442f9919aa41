from __future__ import annotations

from pathlib import Path

import pytest

from tests.doubles import neuron_variables


@pytest.fixture(autouse=True)
def doubles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in neuron_variables(tmp_path / "cache", sdk=False).items():
        monkeypatch.setenv(name, value)
