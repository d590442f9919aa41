"""The list of environments, those of tools, and files that several share."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from compilewatch.environments import Environments, creation, listing
from compilewatch.environments.creation import needed, packages_in, release_in, share
from compilewatch.errors import InterpreterError
from tests import factories


@pytest.mark.parametrize(("cuda", "offered"), [("13.2", False), (None, True)])
def test_the_cuda_build_is_offered_beside_a_cpu_build_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: str | None, offered: bool
) -> None:
    made = factories.environment(cuda=cuda)
    monkeypatch.setattr(Environments, "describe", lambda *_, **__: made)
    listed = {each.name: each.advice for each in listing(Environments(tmp_path))}
    assert ("cuda" in listed) == offered
    assert listed["xla"] == "compilewatch env create xla"


Step = Callable[[], object]


def nothing() -> None: ...


def test_one_is_made_once_and_again_after_whatever_leaves_it_incomplete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requirements, ran = tmp_path / "monitor.txt", list[str]()
    requirements.write_text("streamlit==1\n")
    tool = creation.Tool("monitor", tmp_path)
    monkeypatch.setattr(creation, "REQUIREMENTS", tmp_path)
    monkeypatch.setattr(creation, "runs", lambda python: Path(python).exists())

    def create(during: Step = nothing) -> list[str]:
        """The commands that run; `venv` makes its interpreter."""

        def run_step(_: str, folder: Path, command: list[str], *_more: object) -> None:
            ran.append(next(word for word in command if word in ("venv", "install", "check")))
            if ran[-1] == "venv":
                tool.python.parent.mkdir(parents=True)
                tool.python.touch()
            during()

        ran.clear()
        monkeypatch.setattr(creation, "run_step", run_step)
        tool.create()
        return ran

    def fails() -> None:
        raise InterpreterError("pip failed")

    assert not tool.is_ready()
    assert create() == ["venv", "install", "check"]
    assert tool.python == tmp_path / "tools" / "monitor" / "venv" / "bin" / "python"
    assert tool.is_ready()
    assert create() == []
    # Other requirements are installed into it; those that change meanwhile do not count.
    requirements.write_text("streamlit==2\n")
    assert not tool.is_ready()
    assert create(lambda: requirements.write_text("streamlit==3\n")) == ["install", "check"]
    assert not tool.is_ready()
    with pytest.raises(InterpreterError, match="pip failed"):
        create(fails)
    requirements.write_text("streamlit==2\n")
    assert not tool.is_ready()


def install(folder: Path, name: str, requires: tuple[str, ...] = (), address: bool = False) -> None:
    """A package with one module, as pip leaves it."""
    described = folder / f"{name}-1.0.dist-info"
    (folder / name).mkdir(parents=True)
    described.mkdir()
    (folder / name / "__init__.py").write_text("")
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0"]
    lines += [f"Requires-Dist: {each}" for each in requires]
    (described / "METADATA").write_text("\n".join(lines))
    files = [f"{name}/__init__.py", f"{described.name}/METADATA", "../../../bin/tool", "gone.py"]
    (described / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    if address:
        (described / "direct_url.json").write_text("{}")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "lib" / "source"
    install(folder, "torch", ("Sympy>=1", "toolkit[blas]", "absent; extra == 'opt'", "not there"))
    install(folder, "sympy")
    install(folder, "toolkit", ("blas; extra == 'blas'", "solver; extra == 'solver'"))
    install(folder, "blas")
    install(folder, "solver")
    install(folder, "edited", address=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").write_text("#!/python")
    return folder


@pytest.mark.parametrize("linked", [True, False])
def test_shared_files_of_what_is_needed_are_the_same_files_and_outlive_their_source(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    if not linked:  # on another file system, they are copied
        monkeypatch.setattr(os, "link", refuse)
    known = packages_in(source)
    assert needed(known, ["torch"]) == ("blas", "sympy", "toolkit", "torch")
    assert "edited" not in known
    into = tmp_path / "made" / "lib" / "into"
    into.mkdir(parents=True)
    assert share(source, into, ["torch"]) == ("blas", "sympy", "toolkit", "torch")
    file = Path("torch", "__init__.py")
    assert (into / file).samefile(source / file) is linked
    assert release_in(into, "torch") == "1.0"
    assert not (into / "solver").exists()
    assert not (tmp_path / "made" / "bin").exists()
    (source / file).unlink()
    assert (into / file).exists()


def test_what_is_installed_stays_and_a_broken_copy_begins_again(
    source: Path, tmp_path: Path
) -> None:
    into = tmp_path / "into"
    install(into, "sympy")
    (into / "torch").mkdir()
    (into / "torch" / "__init__.py").write_text("left behind")
    assert share(source, into, ["torch"]) == ("blas", "toolkit", "torch")
    assert not (into / "sympy" / "__init__.py").samefile(source / "sympy" / "__init__.py")
    assert (into / "torch" / "__init__.py").samefile(source / "torch" / "__init__.py")
    assert share(source, into, ["torch"]) == ()
