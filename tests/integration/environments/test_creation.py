from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from compilewatch.environments import STAMP_FILE, Environments, EnvironmentState, listing
from compilewatch.environments.creation import Recipe, _installs, create, recipe_of, remove, size_of
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

    environments: Environments
    recipe: Recipe
    state: EnvironmentState
    available: tuple[str, ...]
    refused: str
    """What there was before it was made."""
    environment: Environment
    anew: bool
    said: list[str]


@pytest.fixture
def environments(tmp_path: Path) -> Environments:
    return Environments(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, index: Path) -> Making:
    """Made where the making of one was left off, with an interpreter that is none."""
    environments, said = Environments(tmp_path_factory.mktemp("cache")), list[str]()
    lock = tmp_path_factory.mktemp("recipe") / "lock.txt"
    lock.write_text(LOCK)
    recipe = Recipe(torch="torch==2.9.0", requirements=lock)
    broken = environments.folder("torch-2.9") / "venv" / "bin"
    broken.mkdir(parents=True)
    (broken / "python").write_text("no program")
    with pytest.raises(InterpreterError) as caught:
        environments.interpreter("torch-2.9")
    state, known = _states(environments)["torch-2.9"], environments.available()
    environment, anew = create(environments, "torch-2.9", recipe, observer=said.append)
    return Making(
        environments=environments,
        recipe=recipe,
        state=state,
        available=known,
        refused=str(caught.value),
        environment=environment,
        anew=anew,
        said=said,
    )


def _states(environments: Environments) -> dict[str, EnvironmentState]:
    return {listed.name: listed.state for listed in listing(environments)}


@pytest.mark.matrix
def test_an_unfinished_one_is_not_used_and_is_finished(made: Making) -> None:
    assert made.available == ("default",)
    assert made.state is EnvironmentState.UNFINISHED
    assert "no environment 'torch-2.9'" in made.refused
    assert made.anew
    assert _states(made.environments)["torch-2.9"] is EnvironmentState.READY


@pytest.mark.matrix
def test_made_once_from_its_recipe_and_used_by_its_name(made: Making) -> None:
    assert made.environment.torch == "2.9.0+stub"
    assert made.environment.name == "torch-2.9"
    assert any(line.startswith("Installing collected packages") for line in made.said)
    assert made.environments.available() == ("default", "torch-2.9")
    python = made.environments.interpreter("torch-2.9").path
    assert python == made.environment.python_executable
    assert made.environments.describe("torch-2.9") == made.environment
    said = list[str]()
    again = create(made.environments, "torch-2.9", made.recipe, observer=said.append)
    assert again == (made.environment, False)
    assert said == []


@pytest.mark.matrix
def test_a_changed_recipe_is_applied_and_one_that_pip_rejects_leaves_no_stamp(
    made: Making,
) -> None:
    folder = made.environments.folder("torch-2.9")
    marker = folder / "venv" / "marker"
    marker.touch()
    made.recipe.requirements.write_text("torch==2.9.0\nno-such-thing==1\n")
    with pytest.raises(InterpreterError, match=r"no-such-thing==1.*create\.log") as caught:
        create(made.environments, "torch-2.9", made.recipe)
    assert "\n" not in str(caught.value)
    assert not (folder / STAMP_FILE).exists()
    made.recipe.requirements.write_text("torch==2.9.0\nmsgspec>0\n")
    assert create(made.environments, "torch-2.9", made.recipe) == (made.environment, True)
    assert marker.exists()


def test_an_interpreter_that_is_not_there_is_one_line(
    environments: Environments, recipe: Recipe
) -> None:
    with pytest.raises(InterpreterError, match=r"no-python cannot be used: No such file"):
        create(environments, "torch-2.9", recipe, python="/no-python")


@pytest.mark.parametrize(
    ("name", "torch", "transformers", "complaint"),
    [
        ("default", None, None, "make setup"),
        ("../up", "2.9.0", None, "use letters"),
        ("nightly", None, None, "needs --torch VERSION"),
        ("nightly", "newest", None, "expected a version"),
        ("nightly", None, "newest", "expected a version"),
        ("nightly", None, "4.56.2", "supports >=4.57 only"),
        ("xla", "2.9.0", None, "omit --torch"),
    ],
)
def test_names_and_versions_that_make_no_sense(
    name: str, torch: str | None, transformers: str | None, complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        recipe_of(name, torch, transformers)


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


def test_another_transformers_keeps_the_torch_of_the_lock_and_pins_nothing_else() -> None:
    recipe = recipe_of("old", transformers="5.5.4")
    assert recipe.torch.startswith("torch==2.")
    assert recipe.chosen == ("transformers==5.5.4",)
    assert {"msgspec", "transformers"} <= set(recipe.packages)
    assert not [each for each in recipe.packages if "=" in each]
    assert recipe.digest != recipe_of("old", transformers="5.5.3").digest


def test_further_packages_are_part_of_the_recipe() -> None:
    recipe = recipe_of("old", transformers="5.5.4", further=["torchvision", "timm"])
    assert recipe.further == ("timm", "torchvision")
    assert list(_installs(recipe))[-1][-2:] == ["timm", "torchvision"]
    assert recipe.digest != recipe_of("old", transformers="5.5.4").digest
    with pytest.raises(UsageError, match="--with --index-url: expected the name of a package"):
        recipe_of("old", transformers="5.5.4", further=["--index-url"])
    with pytest.raises(UsageError, match="'vision' has its own packages: omit --with"):
        recipe_of("vision", further=["timm"])


@pytest.fixture
def chosen(tmp_path: Path, index: Path) -> Recipe:
    lock = tmp_path / "lock.txt"
    lock.write_text(LOCK)
    pin = "torch==2.9.0"
    return Recipe(torch=pin, requirements=lock, chosen=(pin,))


def test_a_release_that_does_not_exist_is_one_line_and_leaves_nothing(
    environments: Environments, chosen: Recipe
) -> None:
    pin = "torch==2.99.0"
    absent = Recipe(torch=pin, requirements=chosen.requirements, chosen=(pin,))
    with pytest.raises(UsageError, match=r"torch 2\.99\.0 does not exist.*newest is 2\.9\.0$"):
        create(environments, "absent", absent)
    nothing = Recipe(torch=pin, requirements=chosen.requirements, chosen=("no-such==1.0",))
    with pytest.raises(InterpreterError, match="releases of no-such are not known"):
        create(environments, "absent", nothing)
    for python, why in (("/no-python", "cannot be run: No such"), ("/bin/false", "cannot list")):
        with pytest.raises(InterpreterError, match=f"^{python} {why}"):
            create(environments, "absent", absent, python=python)
    assert not environments.folder("absent").exists()


@pytest.mark.matrix
def test_environments_with_one_torch_share_its_files_and_each_can_be_deleted(
    environments: Environments, chosen: Recipe
) -> None:
    """Two real environments: only pip shows that it takes linked files for installed packages."""
    said = list[str]()
    first, _ = create(environments, "first", chosen)
    second, _ = create(environments, "second", chosen, observer=said.append)
    files = [
        next(environments.folder(name).glob("venv/lib/python*/site-packages/torch/*.py"))
        for name in ("first", "second")
    ]
    assert files[0].samefile(files[1])
    assert any("torch 2.9.0: shared with" in line for line in said)
    assert not any("Installing collected" in line and "torch" in line for line in said)
    assert second.torch == first.torch == "2.9.0+stub"
    assert size_of(environments, "second").shared_bytes > 0
    remove(environments, "first")
    assert environments.available() == ("default", "second")
    assert environments.describe("second", fresh=True).torch == "2.9.0+stub"
    with pytest.raises(UsageError, match="no created environment 'first'; see"):
        remove(environments, "first")


@pytest.mark.matrix
def test_the_cuda_build_never_shares_a_cpu_build_nor_is_one(
    tmp_path: Path, chosen: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real pip: only it shows that no CPU build is linked, and which index it was given."""
    environments, said = Environments(tmp_path), list[str]()
    create(environments, "first", chosen)
    monkeypatch.setenv("TORCH_INDEX", "http://127.0.0.1:1")  # of CPU builds: not for this one
    monkeypatch.setattr("compilewatch.environments.creation.TORCH_BYTES", 0)
    wanted = Recipe(torch=chosen.torch, requirements=chosen.requirements, cuda_build=True)
    assert wanted.digest != chosen.digest
    with pytest.raises(InterpreterError, match=r"2\.9\.0\+stub, which is not a CUDA build: use a"):
        create(environments, "cuda", wanted, observer=said.append)
    assert environments.available() == ("default", "first")
    assert not any("torch 2.9.0: shared with" in line for line in said)
    folder = next((tmp_path / "environments" / "cuda").glob("venv/lib/python*/site-packages"))
    version = folder / "torch" / "version.py"
    version.write_text(version.read_text() + "cuda: str | None = '13.2'\n")
    made, _ = create(environments, "cuda", wanted)
    assert made.cuda == "13.2"
    assert environments.available() == ("default", "cuda", "first")


def test_cuda_is_the_lock_of_compilewatch_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of("cuda")
    assert recipe.cuda_build
    assert f"{recipe.torch}\n" in (recipe.requirements.with_name("default.txt").read_text())
    assert "transformers" in recipe.packages
    with pytest.raises(UsageError, match="omit --torch"):
        recipe_of("cuda", "2.9.0")
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(UsageError, match="needs Linux"):
        recipe_of("cuda")


def test_a_full_disk_is_said_before_torch_is_downloaded(
    environments: Environments, chosen: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compilewatch.environments.creation.TORCH_BYTES", 2**60)
    with pytest.raises(InterpreterError, match=r"needs about .* GiB for torch==2\.9\.0") as caught:
        create(environments, "big", chosen)
    assert "\n" not in str(caught.value)
    assert environments.available() == ("default",)


@pytest.mark.xla
def test_xla_shows_its_own_torch_and_nothing_of_ours(xla_python: str) -> None:
    found = Environments().describe("xla")
    assert found.python_executable == xla_python
    assert found.torch.startswith("2.9.0")
    assert found.packages["torch-xla"] == "2.9.0"


def test_further_packages_need_no_version() -> None:
    recipe = recipe_of("kornia", further=["kornia"])
    assert (recipe.transformers, recipe.further) == (None, ("kornia",))
    assert recipe.torch == recipe_of("old", transformers="5.5.4").torch
    assert recipe.shares
