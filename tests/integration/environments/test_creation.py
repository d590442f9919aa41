from pathlib import Path

import pytest

from compilewatch.environments import STAMP_FILE, Environments, EnvironmentState, listing
from compilewatch.environments import creation as creating
from compilewatch.environments.creation import Recipe, create, recipe_of, remove, sizes_of
from compilewatch.errors import InterpreterError, UsageError

LOCK = "torch==2.9.0\nmsgspec\npackaging\n"
PIN = "torch==2.9.0"


@pytest.fixture
def environments(tmp_path: Path) -> Environments:
    return Environments(tmp_path)


@pytest.fixture
def lock(tmp_path: Path, index: Path) -> Path:
    path = tmp_path / "lock.txt"
    path.write_text(LOCK)
    return path


def states(environments: Environments) -> dict[str, EnvironmentState]:
    return {listed.name: listed.state for listed in listing(environments)}


@pytest.mark.matrix
def test_one_is_made_once_finished_where_it_was_left_off_and_changed_with_its_recipe(
    environments: Environments, lock: Path
) -> None:
    """Only real pip shows that an environment is made; that takes seconds."""
    recipe, said = Recipe(torch=PIN, requirements=lock), list[str]()
    folder = environments.folder("torch-2.9")
    # Left off with an interpreter that is none.
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "venv" / "bin" / "python").write_text("no program")
    with pytest.raises(InterpreterError, match=r"no environment 'torch-2\.9'"):
        environments.interpreter("torch-2.9")
    assert states(environments)["torch-2.9"] is EnvironmentState.UNFINISHED
    assert environments.available() == ("default",)
    environment, anew = create(environments, "torch-2.9", recipe, observer=said.append)
    assert anew
    assert states(environments)["torch-2.9"] is EnvironmentState.READY
    assert (environment.torch, environment.name) == ("2.9.0+stub", "torch-2.9")
    assert any(line.startswith("Installing collected packages") for line in said)
    assert environments.available() == ("default", "torch-2.9")
    assert environments.interpreter("torch-2.9").path == environment.python_executable
    assert environments.describe("torch-2.9") == environment
    said.clear()
    assert create(environments, "torch-2.9", recipe, observer=said.append) == (environment, False)
    assert said == []
    # A recipe that pip rejects leaves no stamp, and another one is applied to what is there.
    (folder / "venv" / "marker").touch()
    lock.write_text(f"{PIN}\nno-such-thing==1\n")
    with pytest.raises(InterpreterError, match=r"no-such-thing==1.*create\.log") as caught:
        create(environments, "torch-2.9", recipe)
    assert "\n" not in str(caught.value)
    assert not (folder / STAMP_FILE).exists()
    lock.write_text(f"{PIN}\nmsgspec>0\npackaging\n")
    assert create(environments, "torch-2.9", recipe) == (environment, True)
    assert (folder / "venv" / "marker").exists()


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("default", {}, "make setup"),
        ("../up", {"torch": "2.9.0"}, "use letters"),
        ("nightly", {}, "needs --torch VERSION"),
        ("nightly", {"torch": "newest"}, "expected a version"),
        ("nightly", {"transformers": "4.56.2"}, "supports >=4.57 only"),
        ("cuda", {"torch": "2.9.0"}, "omit --torch"),
        ("vision", {"further": ["timm"]}, "'vision' has its own packages: omit --with"),
        ("old", {"further": ["--index-url"]}, "--with --index-url: expected the name of a package"),
    ],
)
def test_names_and_versions_that_make_no_sense(
    name: str, options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        recipe_of(name, **options)


def test_a_recipe_has_what_its_environment_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # The locks pin one torch.
    for name in ("xla", "neuron-xla"):
        assert recipe_of(name).torch == PIN
    # Another torch brings only what a worker imports.
    recipe = recipe_of("torch-2.9", "2.9.0")
    assert recipe.torch == PIN
    assert {"msgspec", "transformers"} <= {*recipe.packages}
    assert not {"torch", "torchvision", "timm"} & {*recipe.packages}
    # Another Transformers keeps the torch of the lock and pins nothing else.
    old = recipe_of("old", transformers="5.5.4")
    assert old.torch.startswith("torch==2.")
    assert old.chosen == ("transformers==5.5.4",)
    assert {"msgspec", "transformers"} <= {*old.packages}
    assert "==" not in old.requirements.read_text()
    assert old.digest != recipe_of("old", transformers="5.5.3").digest
    # Further packages are part of the recipe, and need no version.
    more = recipe_of("old", transformers="5.5.4", further=["torchvision", "timm"])
    assert more.further == ("timm", "torchvision")
    assert list(creating._installs(more))[-1][-2:] == ["timm", "torchvision"]
    assert more.digest != old.digest
    kornia = recipe_of("kornia", further=["kornia"])
    assert (kornia.transformers, kornia.further) == (None, ("kornia",))
    assert (kornia.torch, kornia.shares) == (old.torch, True)
    # The CUDA build is the lock of compilewatch itself.
    cuda = recipe_of("cuda")
    assert (cuda.cuda_build, cuda.torch) == (True, old.torch)
    assert "transformers" in cuda.packages
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(UsageError, match="needs Linux"):
        recipe_of("cuda")


def test_what_cannot_be_made_is_one_line_and_leaves_nothing(
    environments: Environments, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe(torch=PIN, requirements=lock)
    with pytest.raises(InterpreterError, match=r"cannot be created \(/no-python\): No such file"):
        create(environments, "torch-2.9", recipe, python="/no-python")
    absent = Recipe(torch="torch==2.99.0", requirements=lock, chosen=("torch==2.99.0",))
    with pytest.raises(UsageError, match=r"torch 2\.99\.0 does not exist.*newest is 2\.9\.0$"):
        create(environments, "absent", absent)
    nothing = Recipe(torch=PIN, requirements=lock, chosen=("no-such==1.0",))
    with pytest.raises(InterpreterError, match="releases of no-such are not known"):
        create(environments, "absent", nothing)
    for python, why in (("/no-python", "cannot be run: No such"), ("/bin/false", "cannot list")):
        with pytest.raises(InterpreterError, match=f"^{python} {why}"):
            create(environments, "absent", absent, python=python)
    assert not environments.folder("absent").exists()
    # A full disk is said before torch is downloaded.
    monkeypatch.setattr(creating, "TORCH_BYTES", 2**60)
    chosen = Recipe(torch=PIN, requirements=lock, chosen=(PIN,))
    with pytest.raises(InterpreterError, match=r"needs about .* GiB for torch==2\.9\.0") as caught:
        create(environments, "big", chosen)
    assert "\n" not in str(caught.value)
    assert environments.available() == ("default",)


@pytest.mark.matrix
def test_environments_with_one_torch_share_its_files_and_each_can_be_deleted(
    environments: Environments, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only real pip shows that it takes linked files for installed packages, and its index."""
    chosen, said = Recipe(torch=PIN, requirements=lock, chosen=(PIN,)), list[str]()

    def version_file(name: str) -> Path:
        return next(environments.folder(name).glob("venv/lib/python*/site-packages/torch/ver*.py"))

    first, _ = create(environments, "first", chosen)
    second, _ = create(environments, "second", chosen, observer=said.append)
    assert version_file("first").samefile(version_file("second"))
    assert any("torch 2.9.0: shared with" in line for line in said)
    assert not any("Installing collected" in line and "torch" in line for line in said)
    assert second.torch == first.torch == "2.9.0+stub"
    assert sizes_of(environments, "second")[1] > 0
    remove(environments, "first")
    assert environments.available() == ("default", "second")
    assert environments.describe("second", fresh=True).torch == "2.9.0+stub"
    with pytest.raises(UsageError, match="no created environment 'first'; see"):
        remove(environments, "first")
    # A CUDA build never shares a CPU build, nor is one.
    said.clear()
    monkeypatch.setenv("TORCH_INDEX", "http://127.0.0.1:1")  # of CPU builds: not for this one
    monkeypatch.setattr(creating, "TORCH_BYTES", 0)
    cuda = Recipe(torch=PIN, requirements=lock, cuda_build=True)
    assert cuda.digest != chosen.digest
    with pytest.raises(InterpreterError, match=r"2\.9\.0\+stub, which is not a CUDA build: use a"):
        create(environments, "cuda", cuda, observer=said.append)
    assert environments.available() == ("default", "second")
    assert not any("torch 2.9.0: shared with" in line for line in said)
    version = version_file("cuda")
    version.write_text(version.read_text() + "cuda: str | None = '13.2'\n")
    assert create(environments, "cuda", cuda)[0].cuda == "13.2"
    assert environments.available() == ("default", "cuda", "second")
