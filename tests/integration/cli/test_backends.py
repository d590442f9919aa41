"""A backend or a setting that torch does not have is found before anything starts."""

from __future__ import annotations

import msgspec
import pytest

from compilewatch.api import choose
from compilewatch.config import Settings
from compilewatch.contract.messages import Readiness
from compilewatch.errors import UsageError
from compilewatch.records import Target

SETTINGS = Settings()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The environments that were asked; each knows `eager`."""
    names: list[str] = []

    def readiness(_: object, name: str, **__: object) -> Readiness:
        names.append(name)
        return Readiness(
            missing={},
            backends=("eager", "relu_runtime_error_TESTING_ONLY"),
            nested_graph_breaks=name == "default",
        )

    monkeypatch.setattr(choose, "readiness", readiness)
    return names


def test_an_unknown_backend_lists_those_that_there_are(asked: list[str]) -> None:
    with pytest.raises(UsageError, match=r"'foo' in environment 'default'; known: eager$"):
        choose.check_backends([Target(name="dynamo", backend="foo")], SETTINGS)
    assert asked == ["default"]


def test_each_named_environment_is_called(asked: list[str]) -> None:
    named = msgspec.structs.replace(SETTINGS, environments=("default", "torch-2.9"))
    choose.check_backends([Target(name="dynamo", backend="eager")], named)
    assert asked == ["default", "torch-2.9"]


def test_no_worker_is_called_where_the_catalogue_knows(asked: list[str]) -> None:
    targets = [Target(name="dynamo"), Target(name="export", backend="strict")]
    choose.check_backends(targets, SETTINGS)
    assert asked == []


def test_nested_graph_breaks_are_rejected_where_torch_has_no_such_setting(asked: list[str]) -> None:
    on = [Target(nested_graph_breaks=True)]
    choose.check_nested_graph_breaks(on, SETTINGS, asked="on")
    old = msgspec.structs.replace(SETTINGS, environments=("default", "torch-1.0"))
    with pytest.raises(
        UsageError, match=r"environment 'torch-1\.0' has no setting nested_graph_br"
    ):
        choose.check_nested_graph_breaks(on, old, asked="on")
    asked.clear()
    choose.check_nested_graph_breaks([Target(nested_graph_breaks=False)], old, asked="off")
    assert asked == []  # off is what a torch without the setting does


def test_nested_graph_breaks_need_a_target_that_reads_them(asked: list[str]) -> None:
    with pytest.raises(UsageError, match="a setting of the target dynamo: name it too"):
        choose.check_nested_graph_breaks([Target(name="export")], SETTINGS, asked="off")
    choose.check_nested_graph_breaks([Target(name="export")], SETTINGS, asked=None)
    assert asked == []
