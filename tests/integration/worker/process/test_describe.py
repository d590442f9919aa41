"""What of Neuron an environment says of itself, so that answers do not outlive it."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.worker.process import describe
from tests.doubles import BIN, neuron_variables


def test_the_compiler_and_the_cores_are_part_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in neuron_variables(tmp_path / "cache", sdk=False).items():
        monkeypatch.setenv(name, value)
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
