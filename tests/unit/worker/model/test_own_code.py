"""A user's own module is never imported from bytecode of an earlier text."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from compilewatch.records import FactoryBuild
from compilewatch.worker.model.own_code import import_own


def test_a_text_of_the_same_length_and_second_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "changed_soon.py"
    build = FactoryBuild(factory="changed_soon:model", path=str(tmp_path))
    for value in ("first", "other"):
        module.write_text(f"VALUE = {value!r}\n")
        os.utime(module, (1_000_000_000, 1_000_000_000))
        with monkeypatch.context() as fresh:
            fresh.setattr(sys, "dont_write_bytecode", False)
            fresh.setattr(sys, "path", list(sys.path))
            imported = import_own(build, "changed_soon")
            fresh.delitem(sys.modules, "changed_soon")
        sys.modules.pop("changed_soon", None)
        assert value == imported.VALUE
    assert list(tmp_path.rglob("*.pyc")) == []
