from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from compilewatch import environments
from compilewatch.environments import STAMP_FILE, available, environment_folder, interpreter
from compilewatch.environments.creation import create, remove
from compilewatch.environments.listing import State, listing, size_of
from compilewatch.environments.recipes import Recipe, recipe_of
from compilewatch.errors import InterpreterError, UsageError
from compilewatch.records import Environment

LOCK = "torch==2.9.0\nmsgspec\n"


@pytest.fixture
def recipe(tmp_path: Path, index: Path) -> Recipe:
    lock = tmp_path / "lock.txt"
    lock.write_text(LOCK)
    return Recipe(torch="torch==2.9.0", requirements=lock)


@dataclass(kw_only=True)
class Making:
    """One environment made by real pip, for all tests: each takes seconds."""

    cache: Path
    recipe: Recipe
    state: State
    available: tuple[str, ...]
    refused: str
    """What there was before it was made."""
    environment: Environment
    anew: bool
    said: list[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, index: Path) -> Making:
    """Made where the making of one was left off, with an interpreter that is none."""
    cache, said = tmp_path_factory.mktemp("cache"), list[str]()
    lock = tmp_path_factory.mktemp("recipe") / "lock.txt"
    lock.write_text(LOCK)
    recipe = Recipe(torch="torch==2.9.0", requirements=lock)
    broken = environment_folder("torch-2.9", cache) / "venv" / "bin"
    broken.mkdir(parents=True)
    (broken / "python").write_text("no program")
    with pytest.raises(InterpreterError) as caught:
        interpreter("torch-2.9", cache)
    state, known = _states(cache)["torch-2.9"], available(cache)
    environment, anew = create("torch-2.9", recipe, cache=cache, observer=said.append)
    return Making(
        cache=cache,
        recipe=recipe,
        state=state,
        available=known,
        refused=str(caught.value),
        environment=environment,
        anew=anew,
        said=said,
    )


def _states(cache: Path) -> dict[str, State]:
    return {listed.name: listed.state for listed in listing(cache)}


def test_an_unfinished_one_is_not_used_and_is_finished(made: Making) -> None:
    assert made.available == ("default",)
    assert made.state is State.UNFINISHED
    assert "no environment 'torch-2.9'" in made.refused
    assert made.anew
    assert _states(made.cache)["torch-2.9"] is State.READY


def test_made_once_from_its_recipe_and_used_by_its_name(made: Making) -> None:
    assert made.environment.torch == "2.9.0+stub"
    assert made.environment.name == "torch-2.9"
    assert any(line.startswith("Installing collected packages") for line in made.said)
    assert available(made.cache) == ("default", "torch-2.9")
    assert interpreter("torch-2.9", made.cache).path == made.environment.python_executable
    assert environments.describe("torch-2.9", made.cache) == made.environment
    said = list[str]()
    again = create("torch-2.9", made.recipe, cache=made.cache, observer=said.append)
    assert again == (made.environment, False)
    assert said == []


def test_a_changed_recipe_is_applied_and_one_that_pip_refuses_leaves_no_stamp(
    made: Making,
) -> None:
    folder = environment_folder("torch-2.9", made.cache)
    marker = folder / "venv" / "marker"
    marker.touch()
    made.recipe.requirements.write_text("torch==2.9.0\nno-such-thing==1\n")
    with pytest.raises(InterpreterError, match=r"no-such-thing==1.*create\.log") as caught:
        create("torch-2.9", made.recipe, cache=made.cache)
    assert "\n" not in str(caught.value)
    assert not (folder / STAMP_FILE).exists()
    made.recipe.requirements.write_text("torch==2.9.0\nmsgspec>0\n")
    assert create("torch-2.9", made.recipe, cache=made.cache) == (made.environment, True)
    assert marker.exists()


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


@pytest.mark.parametrize(
    ("version", "complaint"),
    [("4.56.2", "supports >=4.57 only"), ("newest", "expected a version")],
)
def test_a_transformers_that_is_not_supported_is_refused(version: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        recipe_of("old", transformers=version)


def test_another_transformers_keeps_the_torch_of_the_lock_and_pins_nothing_else() -> None:
    recipe = recipe_of("old", transformers="5.5.4")
    assert recipe.torch.startswith("torch==2.")
    assert recipe.chosen == ("transformers==5.5.4",)
    assert {"msgspec", "transformers"} <= set(recipe.packages)
    assert not [each for each in recipe.packages if "=" in each]
    assert recipe.digest != recipe_of("old", transformers="5.5.3").digest


@pytest.fixture
def chosen(tmp_path: Path, index: Path) -> Recipe:
    lock = tmp_path / "lock.txt"
    lock.write_text(LOCK)
    pin = "torch==2.9.0"
    return Recipe(torch=pin, requirements=lock, chosen=(pin,))


def test_a_release_that_does_not_exist_is_one_line_and_leaves_nothing(
    tmp_path: Path, chosen: Recipe
) -> None:
    pin = "torch==2.99.0"
    absent = Recipe(torch=pin, requirements=chosen.requirements, chosen=(pin,))
    with pytest.raises(UsageError, match=r"torch 2\.99\.0 does not exist.*newest is 2\.9\.0$"):
        create("absent", absent, cache=tmp_path)
    nothing = Recipe(torch=pin, requirements=chosen.requirements, chosen=("no-such==1.0",))
    with pytest.raises(InterpreterError, match="releases of no-such are not known"):
        create("absent", nothing, cache=tmp_path)
    assert not environment_folder("absent", tmp_path).exists()


def test_environments_with_one_torch_share_its_files_and_each_can_be_deleted(
    tmp_path: Path, chosen: Recipe
) -> None:
    """Two real environments: only pip shows that it takes linked files for installed packages."""
    said = list[str]()
    first, _ = create("first", chosen, cache=tmp_path)
    second, _ = create("second", chosen, cache=tmp_path, observer=said.append)
    files = [
        next(environment_folder(name, tmp_path).glob("venv/lib/python*/site-packages/torch/*.py"))
        for name in ("first", "second")
    ]
    assert files[0].samefile(files[1])
    assert any("torch 2.9.0: shared with" in line for line in said)
    assert not any("Installing collected" in line and "torch" in line for line in said)
    assert second.torch == first.torch == "2.9.0+stub"
    assert size_of("second", tmp_path).shared_bytes > 0
    remove("first", tmp_path)
    assert available(tmp_path) == ("default", "second")
    assert environments.describe("second", tmp_path, fresh=True).torch == "2.9.0+stub"
    with pytest.raises(UsageError, match="no created environment 'first'; see"):
        remove("first", tmp_path)


def test_a_full_disk_is_said_before_torch_is_downloaded(
    tmp_path: Path, chosen: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compilewatch.environments.creation.TORCH_BYTES", 2**60)
    with pytest.raises(InterpreterError, match=r"needs about .* GiB for torch==2\.9\.0") as caught:
        create("big", chosen, cache=tmp_path)
    assert "\n" not in str(caught.value)
    assert available(tmp_path) == ("default",)


@pytest.mark.xla
def test_xla_shows_its_own_torch_and_nothing_of_ours(xla_python: str) -> None:
    found = environments.describe("xla")
    assert found.python_executable == xla_python
    assert found.torch.startswith("2.9.0")
    assert found.packages["torch-xla"] == "2.9.0"
