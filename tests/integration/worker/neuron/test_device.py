"""What neuron-ls says, through its double."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.neuron import neuronx_cc


def test_cores_are_counted_where_there_is_a_driver_and_the_tool(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert neuronx_cc.core_count() == 0
    monkeypatch.setenv("NEURON_DOUBLE_CORES", "2")
    assert neuronx_cc.core_count() == 2
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(neuronx_cc, "TOOLS", tmp_path)
    assert neuronx_cc.core_count() == 0


def test_the_family_is_that_of_the_instance_type(tmp_path: Path) -> None:
    product = tmp_path / "product_name"
    assert neuronx_cc.instance_family(product) is None
    product.write_text("trn1n.32xlarge\n")
    assert neuronx_cc.instance_family(product) == "trn1n"
