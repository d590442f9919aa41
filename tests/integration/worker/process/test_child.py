"""What the server does for its children before it forks them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from compilewatch.worker.model import overrides
from compilewatch.worker.process import child
from tests.integration.launchers.conftest import chaos_request

pytestmark = pytest.mark.torch

OVERRIDE = '[[override]]\nreason = "why"\ndate = 2026-11-24\nclasses = ["X"]\n'


def test_a_child_does_not_read_the_overrides_again_and_none_end_the_server(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(OVERRIDE)
    asked = msgspec.structs.replace(chaos_request("ok"), overrides_dir=str(tmp_path))
    child.read_ahead(asked)
    reads = overrides._read.cache_info().misses
    assert overrides.overrides_of(asked).override[-1].classes == ("X",)
    assert overrides._read.cache_info().misses == reads
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "a.toml").write_text("[[override]\n")
    for folder in (None, str(tmp_path / "missing"), str(tmp_path / "damaged")):
        child.read_ahead(msgspec.structs.replace(chaos_request("ok"), overrides_dir=folder))
