"""What an environment says of itself, and what the server does for its children."""

import os
from pathlib import Path

import msgspec
import pytest

from compilewatch.worker.model import overrides
from compilewatch.worker.process import child, describe
from tests.doubles import BIN
from tests.integration.launchers.conftest import chaos_request

pytestmark = pytest.mark.torch


def test_the_compiler_and_the_cores_are_part_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(BIN), prepend=os.pathsep)
    there = describe.describe("default")
    assert there.packages["neuronx-cc"] == str(BIN / "neuronx-cc")
    monkeypatch.setenv("NEURON_DOUBLE_CORES", "2")
    assert describe.describe("default").device == "cpu"
    with monkeypatch.context() as installed:  # cores count where they are used
        installed.setattr(describe, "installed_packages", lambda: {"torch-neuronx": "2.9"})
        assert describe.describe("default").device == "cpu, 2 NeuronCores"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    gone = describe.describe("default")
    assert "neuronx-cc" not in gone.packages
    assert gone.digest != there.digest


OVERRIDE = '[[override]]\nreason = "why"\ndate = 2026-11-24\nclasses = ["X"]\n'


def test_a_child_does_not_read_the_overrides_again_and_none_end_the_server(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(OVERRIDE)
    asked = msgspec.structs.replace(chaos_request("ok"), overrides_dir=str(tmp_path))
    child.read_ahead(asked)
    reads = overrides._read.cache_info().misses
    assert overrides.overrides_of(asked)[-1].classes == ("X",)
    assert overrides._read.cache_info().misses == reads
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "a.toml").write_text("[[override]\n")
    for folder in (None, str(tmp_path / "missing"), str(tmp_path / "damaged")):
        child.read_ahead(msgspec.structs.replace(chaos_request("ok"), overrides_dir=folder))
