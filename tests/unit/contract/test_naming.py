"""Commands name a person's own model with the options that found it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from compilewatch.contract.targets import inputs_option, naming_options
from compilewatch.records import FactoryBuild, Request, Target
from compilewatch.sources.own import own_model, with_inputs
from tests import factories


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three folders: the current one, one with a package, and one with a space in its name."""
    monkeypatch.chdir(tmp_path)
    code = "def build():\n    return 1\n\n\ndef inputs():\n    return 1\n"
    (tmp_path / "here.py").write_text(code)
    package = tmp_path / "elsewhere" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "net.py").write_text(code)
    (tmp_path / "other folder").mkdir()
    (tmp_path / "other folder" / "far.py").write_text(code)
    return tmp_path


def asked(name: str, *python_path: Path, inputs: str | None = None) -> Request:
    spec = own_model(name, python_path)
    assert spec is not None
    if inputs is not None:
        spec = with_inputs(spec, inputs)
    return msgspec.structs.replace(factories.request(name), model=spec)


def test_folders_that_are_searched_anyway_are_not_named(folder: Path) -> None:
    assert naming_options(asked("here:build")) == ""
    assert naming_options(asked("./here.py")) == ""
    assert naming_options(asked("elsewhere/package/net.py:build")) == ""


def test_folders_that_were_given_are_named(folder: Path) -> None:
    far, elsewhere = folder / "other folder", folder / "elsewhere"
    assert naming_options(asked("far:build", far)) == f" --python-path '{far}'"
    both = f" --python-path '{far}' --python-path {elsewhere}"
    assert naming_options(asked("here:build", far, elsewhere)) == both
    assert naming_options(asked("./here.py:build", far)) == f" --python-path '{far}'"


def test_the_environment_comes_first(folder: Path) -> None:
    made = msgspec.structs.replace(
        asked("far:build", folder / "other folder"), target=Target(environment="vision")
    )
    found = naming_options(made)
    assert found == f" --environment vision --python-path '{folder / 'other folder'}'"


def test_inputs_are_named_by_file_and_by_function(folder: Path) -> None:
    assert inputs_option(asked("here:build")) == ""
    assert inputs_option(asked("here:build", inputs="here:inputs")) == " --inputs here:inputs"
    saved = msgspec.structs.replace(asked("here:build"), inputs_file="/saved inputs.toml")
    assert inputs_option(saved) == " --inputs '/saved inputs.toml'"


def test_inputs_from_a_file_elsewhere_are_found_again(folder: Path) -> None:
    made = asked("here:build", inputs=str(folder / "other folder" / "far.py") + ":inputs")
    assert naming_options(made) == f" --python-path '{folder / 'other folder'}'"
    assert inputs_option(made) == " --inputs far:inputs"


def test_a_model_of_a_list_is_named_alone(folder: Path) -> None:
    build = FactoryBuild(factory="far:build", path=str(folder), inputs="far:inputs")
    spec = msgspec.structs.replace(factories.request("team/net").model, build=build)
    request = msgspec.structs.replace(factories.request("team/net"), model=spec)
    assert naming_options(request) == inputs_option(request) == ""
    assert naming_options(factories.request("BertModel")) == ""
