from __future__ import annotations

import pytest

from compilewatch.contract.targets import target_label
from compilewatch.errors import UsageError
from compilewatch.plan.placement import place, wanted
from compilewatch.records import Environment, Mode, Target
from tests import factories

DEFAULT = factories.environment()
OLDER = factories.environment(name="torch-2.9", torch="2.9.0")
XLA = factories.environment(name="xla", packages={"torch-xla": "2.9.0"})
NEURON = factories.environment(name="neuron", packages={"neuronx-cc": "2", "torch-xla": "2.9.0"})
AGENT = factories.environment(packages={"neuronx-cc": "2"})
ALL = [Target(name=name) for name in ("dynamo", "xla", "neuron")]


def _placed(named: tuple[str, ...], *known: Environment) -> list[str]:
    return [f"{t.name} in {t.environment}" for t in place(ALL, named, known)]


@pytest.mark.parametrize(
    ("named", "known", "expected"),
    [
        ((), (DEFAULT, XLA, NEURON), ["dynamo in default", "xla in xla", "neuron in neuron"]),
        # Neither can run anywhere: at home, where what is missing is said.
        ((), (DEFAULT,), ["dynamo in default", "xla in xla", "neuron in neuron"]),
        # The capture that Neuron needs can be made in xla.
        ((), (DEFAULT, XLA), ["dynamo in default", "xla in xla", "neuron in xla"]),
        ((), (AGENT,), ["dynamo in default", "xla in xla", "neuron in default"]),
        (
            ("default", "xla"),
            (DEFAULT, XLA),
            ["dynamo in default", "dynamo in xla", "xla in xla", "neuron in xla"],
        ),
        (
            ("default", "torch-2.9"),
            (DEFAULT, OLDER),
            ["dynamo in default", "dynamo in torch-2.9", "xla in xla", "neuron in neuron"],
        ),
    ],
)
def test_where_each_target_is_asked(
    named: tuple[str, ...], known: tuple[Environment, ...], expected: list[str]
) -> None:
    assert _placed(named, *known) == expected


def test_an_environment_that_is_named_must_exist() -> None:
    with pytest.raises(UsageError, match=r"no environment 'tpu'; known: default; .*create tpu"):
        _placed(("tpu",), DEFAULT)


def test_only_what_is_needed_is_looked_at() -> None:
    assert wanted(["dynamo"], ()) == ("default",)
    assert wanted(["dynamo", "neuron"], ()) == ("default", "neuron", "xla")
    assert wanted(["neuron"], ("a", "a")) == ("a",)


def test_a_label_names_the_environment_away_from_home() -> None:
    labels = [target_label(t) for t in place(ALL, (), (DEFAULT, XLA))]
    assert labels == ["dynamo", "xla", "neuron@xla"]
    older = Target(mode=Mode.TRAIN, environment="torch-2.9")
    assert target_label(older) == "dynamo/train@torch-2.9"
