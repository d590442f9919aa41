"""Reviewed knowledge about the Neuron compiler: `data/neuron_operators.toml`."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from compilewatch.data import NEURON_OPERATORS
from compilewatch.files import read_toml
from compilewatch.records import SCHEMA_VERSION, NeuronConcern


class RejectedOperator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One reviewed line: an operator that neuronx-cc is documented to reject, and the source.

    It is named by exactly one of `torch` (`aten::sort`), `hlo` (an opcode), `element_type` (`C64`).
    """

    reason: str
    source: str
    sdk: str
    date: datetime.date
    torch: str | None = None
    hlo: str | None = None
    element_type: str | None = None

    def __post_init__(self) -> None:
        if sum(name is not None for name in (self.torch, self.hlo, self.element_type)) != 1:
            raise ValueError("an operator needs one of `torch`, `hlo` and `element_type`")
        if not self.source.startswith("https://") or not self.reason.strip():
            raise ValueError("an operator needs a `reason` and a `source` (https://…)")

    @property
    def name(self) -> tuple[str | None, str | None, str | None]:
        """What the line is about."""
        return self.torch, self.hlo, self.element_type


class NeuronOperators(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of the file."""

    schema_version: int = SCHEMA_VERSION
    operator: tuple[RejectedOperator, ...] = ()

    def concerns(
        self,
        *,
        torch: Mapping[str, int],
        hlo: Mapping[str, int],
        element_types: Mapping[str, int],
    ) -> Iterator[NeuronConcern]:
        """Return the listed operators that a graph contains, given its counts by name."""
        for row in self.operator:
            named = ((row.torch, torch), (row.hlo, hlo), (row.element_type, element_types))
            for name, counts in named:
                if name is not None and counts.get(name):
                    yield NeuronConcern(
                        operator=name,
                        count=counts[name],
                        reason=row.reason,
                        source=row.source,
                        sdk=row.sdk,
                    )


def load_neuron_operators(path: Path | None) -> NeuronOperators:
    """Read a project's own list, if there is one, and the shipped lines on other operators.

    Raises ConfigError that names the file and the key for anything that violates the schema.
    """
    own = read_toml(path, NeuronOperators).operator if path is not None else ()
    named = {row.name for row in own}
    shipped = read_toml(NEURON_OPERATORS, NeuronOperators).operator
    return NeuronOperators(operator=(*own, *(row for row in shipped if row.name not in named)))
