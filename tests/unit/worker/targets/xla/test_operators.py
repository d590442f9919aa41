"""What neuronx-cc is documented to reject: a strict schema, and what a graph holds of it."""

from pathlib import Path

import pytest

from compilewatch.data import NEURON_OPERATORS
from compilewatch.errors import ConfigError
from compilewatch.files import read_toml
from compilewatch.worker.targets.xla.target import NeuronOperators

TAIL = 'reason = "why"\nsource = "https://example.org"\nsdk = "2.32.0"\ndate = 2026-11-21\n'


def _load(tmp_path: Path, text: str) -> NeuronOperators:
    path = tmp_path / "operators.toml"
    path.write_text(text)
    return read_toml(path, NeuronOperators)


def test_a_graph_is_held_against_each_kind_of_name(tmp_path: Path) -> None:
    known = _load(
        tmp_path,
        f'[[operator]]\ntorch = "aten::sort"\n{TAIL}'
        f'[[operator]]\nhlo = "custom-call"\n{TAIL}'
        f'[[operator]]\nelement_type = "C64"\n{TAIL}',
    )
    found = known.concerns({"aten::sort": 2, "C64": 9}, {"dot": 5, "sort": 2}, {"F32": 9, "C64": 3})
    counted = [(each.operator, each.count) for each in found]
    assert counted == [("aten::sort", 2), ("C64", 3)]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f"[[operator]]\n{TAIL}", "one of `torch`, `hlo` and `element_type`"),
        (f'[[operator]]\ntorch = "a"\nhlo = "b"\n{TAIL}', "one of `torch`"),
        (f'[[operator]]\nhlo = "b"\n{TAIL}'.replace("https", "http"), "`source`"),
        (f'[[operator]]\nhlo = "b"\nsurprise = 1\n{TAIL}', "`surprise`"),
        ("schema_version = 99\n", "schema_version 99 is newer"),
        ("[[operator", "Expected"),
    ],
)
def test_anything_else_is_rejected_by_file_and_key(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError, match="operators.toml.*" + named):
        _load(tmp_path, text)


def test_the_reviewed_list_is_valid() -> None:
    shipped = read_toml(NEURON_OPERATORS, NeuronOperators).operator
    assert "aten::sort" in {each.torch for each in shipped}
