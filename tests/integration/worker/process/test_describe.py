"""What of Neuron an environment says of itself, so that answers do not outlive it."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.worker.process import describe
from tests.doubles import BIN, neuron_variables


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in neuron_variables(tmp_path / "cache", sdk=False).items():
        monkeypatch.setenv(name, value)


def test_a_compiler_from_elsewhere_makes_another_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = describe.describe("default")
    assert there.packages["neuronx-cc"] == str(BIN / "neuronx-cc")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    gone = describe.describe("default")
    assert "neuronx-cc" not in gone.packages
    assert gone.digest != there.digest


def test_cores_are_part_of_the_device_where_they_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NEURON_DOUBLE_CORES", "2")
    assert describe.describe("default").device == "cpu"
    monkeypatch.setattr(describe, "installed_packages", lambda: {"torch-neuronx": "2.9"})
    assert describe.describe("default").device == "cpu, 2 NeuronCores"
