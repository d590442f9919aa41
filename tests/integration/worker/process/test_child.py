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


def test_a_child_does_not_read_the_overrides_again(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(OVERRIDE)
    asked = msgspec.structs.replace(chaos_request("ok"), overrides_dir=str(tmp_path))
    child.read_ahead(asked)
    reads = overrides._read.cache_info().misses
    assert overrides.overrides_of(asked).override[-1].classes == ("X",)
    assert overrides._read.cache_info().misses == reads


@pytest.mark.parametrize("folder", [None, "missing", "damaged"])
def test_overrides_that_cannot_be_read_do_not_end_the_server(
    tmp_path: Path, folder: str | None
) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "a.toml").write_text("[[override]\n")
    named = str(tmp_path / folder) if folder is not None else None
    child.read_ahead(msgspec.structs.replace(chaos_request("ok"), overrides_dir=named))
