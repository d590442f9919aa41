"""What an environment says of itself."""

import os

import pytest

from compilewatch.worker.process import describe
from tests.doubles import BIN

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
