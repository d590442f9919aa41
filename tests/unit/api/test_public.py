"""The public names of the package, what importing it costs, and what is rejected at once."""

import subprocess
import sys
from typing import Any

import msgspec
import pytest

import compilewatch
from compilewatch.api import choose
from compilewatch.config import Settings, load_settings
from compilewatch.contract.messages import Readiness
from compilewatch.errors import UsageError
from compilewatch.records import Target
from tests import factories


@pytest.mark.process
def test_importing_the_package_imports_no_other_module_of_it_and_no_package() -> None:
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "import compilewatch\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    new = done.stdout.split()
    assert {name.split(".")[0] for name in new} <= {"compilewatch", *sys.stdlib_module_names}
    assert [name for name in new if name.startswith("compilewatch.")] == []


def test_each_public_name_is_there_and_documented() -> None:
    for name in compilewatch.__all__:
        found = getattr(compilewatch, name)
        assert isinstance(found, str) or found.__doc__
        assert name in dir(compilewatch)
    with pytest.raises(AttributeError, match="verify"):
        compilewatch.verify  # noqa: B018


@pytest.mark.parametrize(
    ("model", "mode", "message"),
    [
        (object(), "eval", "by its name"),
        (lambda: None, "eval", "by its name"),
        ("BertModel", "test", "mode is 'eval' or 'train'"),
    ],
)
def test_a_fix_of_what_no_other_process_can_build_is_rejected(
    model: Any, mode: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        compilewatch.fix(model, mode=mode)


def test_a_command_about_one_model_names_devices_or_components_to_choose_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two = load_settings({"devices": ("cpu", "cuda")})
    with pytest.raises(UsageError, match="name one with --device"):
        choose.one_target("dynamo", mode="eval", dynamic=None, settings=two)
    parts = tuple(factories.spec(f"org/pipe#{name}", source="hub") for name in ("unet", "vae"))
    monkeypatch.setattr(choose, "choose_models", lambda *_, **__: (parts, ""))
    with pytest.raises(UsageError, match="name one of org/pipe#unet, org/pipe#vae"):
        choose.one_model(load_settings(), "org/pipe")
    monkeypatch.setattr(choose, "choose_models", lambda *_, **__: (parts[:1], ""))
    assert choose.one_model(load_settings(), "org/pipe#unet") == parts[0]


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
    foo, eager = (Target(name="dynamo", backend=backend) for backend in ("foo", "eager"))
    with pytest.raises(UsageError, match=r"'foo' in environment 'default'; known: eager$"):
        choose.check_backends([foo], SETTINGS)
    assert asked.pop() == "default"
    named = msgspec.structs.replace(SETTINGS, environments=("default", "torch-2.9"))
    choose.check_backends([eager], named)
    assert asked == ["default", "torch-2.9"]
    # No worker is called where the catalogue knows.
    choose.check_backends([Target(name="dynamo"), Target(name="export", backend="strict")], named)
    assert asked == ["default", "torch-2.9"]


def test_nested_graph_breaks_are_rejected_where_nothing_has_such_a_setting(
    asked: list[str],
) -> None:
    on, off = (Target(nested_graph_breaks=value) for value in (True, False))
    choose.check_nested_graph_breaks([on], SETTINGS, asked="on")
    old = msgspec.structs.replace(SETTINGS, environments=("default", "torch-1.0"))
    with pytest.raises(UsageError, match=r"environment 'torch-1\.0' has no setting nested_gr"):
        choose.check_nested_graph_breaks([on], old, asked="on")
    asked.clear()
    choose.check_nested_graph_breaks([off], old, asked="off")
    export = [Target(name="export")]
    with pytest.raises(UsageError, match="a setting of the target dynamo: name it too"):
        choose.check_nested_graph_breaks(export, SETTINGS, asked="off")
    choose.check_nested_graph_breaks(export, SETTINGS, asked=None)
    assert asked == []  # off is what a torch without the setting does
