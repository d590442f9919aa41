from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch import environments
from compilewatch.environments import STAMP_FILE, available, environment_folder, interpreter
from compilewatch.environments.creation import Recipe, create, recipe_of
from compilewatch.environments.listing import State, listing
from compilewatch.errors import InterpreterError, UsageError


@pytest.fixture
def recipe(tmp_path: Path, index: Path) -> Recipe:
    lock = tmp_path / "lock.txt"
    lock.write_text("torch==2.9.0\nmsgspec\n")
    return Recipe(torch="torch==2.9.0", requirements=lock)


def _states(cache: Path) -> dict[str, State]:
    return {listed.name: listed.state for listed in listing(cache)}


def test_made_once_from_its_recipe_and_used_by_its_name(tmp_path: Path, recipe: Recipe) -> None:
    cache, said = tmp_path / "cache", list[str]()
    made, anew = create("torch-2.9", recipe, cache=cache, observer=said.append)
    assert anew
    assert made.torch == "2.9.0+stub"
    assert made.name == "torch-2.9"
    assert any(line.startswith("Installing collected packages") for line in said)
    assert available(cache) == ("default", "torch-2.9")
    assert interpreter("torch-2.9", cache).path == made.python_executable
    assert environments.describe("torch-2.9", cache) == made
    said.clear()
    assert create("torch-2.9", recipe, cache=cache, observer=said.append) == (made, False)
    assert said == []

    # A changed recipe is applied to what is there.
    marker = environment_folder("torch-2.9", cache) / "venv" / "marker"
    marker.touch()
    recipe.requirements.write_text("torch==2.9.0\nmsgspec>0\n")
    assert create("torch-2.9", recipe, cache=cache) == (made, True)
    assert marker.exists()


def test_an_unfinished_one_is_not_used_and_is_finished(tmp_path: Path, recipe: Recipe) -> None:
    broken = environment_folder("torch-2.9", tmp_path) / "venv" / "bin"
    broken.mkdir(parents=True)
    (broken / "python").write_text("no program")
    assert available(tmp_path) == ("default",)
    assert _states(tmp_path)["torch-2.9"] is State.UNFINISHED
    with pytest.raises(InterpreterError, match=r"no environment 'torch-2\.9'"):
        interpreter("torch-2.9", tmp_path)
    _, anew = create("torch-2.9", recipe, cache=tmp_path)
    assert anew
    assert _states(tmp_path)["torch-2.9"] is State.READY


def test_what_pip_refuses_is_one_line_and_leaves_no_stamp(tmp_path: Path, recipe: Recipe) -> None:
    recipe.requirements.write_text("torch==2.9.0\nno-such-thing==1\n")
    with pytest.raises(InterpreterError, match=r"no-such-thing==1.*create\.log") as caught:
        create("torch-2.9", recipe, cache=tmp_path)
    assert "\n" not in str(caught.value)
    assert not (environment_folder("torch-2.9", tmp_path) / STAMP_FILE).exists()


def test_an_interpreter_that_is_not_there_is_one_line(tmp_path: Path, recipe: Recipe) -> None:
    with pytest.raises(InterpreterError, match=r"no-python cannot be used: No such file"):
        create("torch-2.9", recipe, python="/no-python", cache=tmp_path)


@pytest.mark.parametrize(
    ("name", "torch", "complaint"),
    [
        ("default", None, "make setup"),
        ("../up", "2.9.0", "use letters"),
        ("nightly", None, "needs --torch VERSION"),
        ("nightly", "newest", "expected a version"),
        ("xla", "2.9.0", "omit --torch"),
    ],
)
def test_names_and_versions_that_make_no_sense(
    name: str, torch: str | None, complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        recipe_of(name, torch)


@pytest.mark.parametrize("name", ["xla", "neuron"])
def test_the_locks_pin_one_torch(name: str) -> None:
    assert recipe_of(name).torch == "torch==2.9.0"
    assert (recipe_of(name).index is not None) == (name == "neuron")


def test_another_torch_brings_only_what_a_worker_imports() -> None:
    recipe = recipe_of("torch-2.9", "2.9.0")
    assert recipe.torch == "torch==2.9.0"
    names = [line.partition("==")[0] for line in recipe.requirements.read_text().splitlines()]
    assert {"msgspec", "transformers"} <= set(names)
    assert not {"torch", "torchvision", "timm"} & set(names)


@pytest.mark.xla
def test_xla_shows_its_own_torch_and_nothing_of_ours(xla_python: str) -> None:
    found = environments.describe("xla")
    assert found.python_executable == xla_python
    assert found.torch.startswith("2.9.0")
    assert found.packages["torch-xla"] == "2.9.0"
