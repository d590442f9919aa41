"""The reviewed list of what neuronx-cc is documented to reject."""

from datetime import date

from compilewatch.data import NEURON_OPERATORS
from compilewatch.files import read_toml
from compilewatch.worker.targets.xla.target import NeuronOperators


def test_each_row_of_the_reviewed_list_has_its_reason_and_source() -> None:
    rejected = read_toml(NEURON_OPERATORS, NeuronOperators).rejected
    assert {"aten::sort", "custom-call", "C64"} <= {row.operator for row in rejected}
    for row in rejected:
        assert row.reason
        assert row.sdk
        assert row.source.startswith("https://")
        assert date.fromisoformat(row.date)
