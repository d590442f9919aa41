"""`compilewatch init`: what it proposes, shows, writes, and leaves as it is."""

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from compilewatch.extras.gate.init import TEST, WORKFLOW, candidates, command
from tests.schemas import vendor_errors
from tests.schemas import workflow as workflow_of

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, height=4): ...
    def forward(self, x): ...

class Sized(nn.Module):
    def __init__(self, height): ...
"""
ZOO = """
from torch import nn

class Sized(nn.Module):
    def __init__(self, height): ...

def build_small():
    return Sized(3)

def get_activation():
    return "relu"
"""


FILES = {
    "src/mypkg/__init__.py": "",
    "src/mypkg/net.py": NET,
    "src/mypkg/sub/zoo.py": ZOO,
    "src/mypkg/old.py": "print 'Python 2'",
    "src/mypkg/words.py": "def build_words():\n    return 'no module'\n",
    "pyproject.toml": '[project]\nname = "mypkg"',
}


def written(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    written(tmp_path, FILES)
    monkeypatch.chdir(tmp_path / "src" / "mypkg")
    return tmp_path


MODELS = ("--model", "mypkg.net:Net", "--model", "mypkg.sub.zoo:build_small")


def init(*arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(command, arguments, input=answer, standalone_mode=False)


EXPORTING = """
from .impl import Encoder, BaseModel, _Private, Needs, Abstract
from .impl import Alias
"""
IMPL = """
from abc import abstractmethod
from torch import nn
from torch.nn import Module

class BaseModel(Module):
    def forward(self, x): ...

class _Private(BaseModel): ...

class Encoder(BaseModel):
    def __init__(self, dim, *, heads, depth=12, weights="imagenet", **kwargs): ...

class Needs(BaseModel):
    def __init__(self, encoder): ...

class Alias(Encoder): ...

class Abstract(BaseModel):
    @abstractmethod
    def head(self): ...

class Hidden(Module):
    def forward(self, x): ...
"""


def test_what_a_package_exports_comes_first_with_small_numbers(tmp_path: Path) -> None:
    written(tmp_path, {"mypkg/__init__.py": EXPORTING, "mypkg/impl.py": IMPL})
    assert [(model.module, model.call) for model in candidates(tmp_path)] == [
        ("mypkg", "Encoder(dim=32, heads=2, depth=1, weights=None)"),
        ("mypkg", "Alias(dim=32, heads=2, depth=1, weights=None)"),
        ("mypkg.impl", "Hidden()"),
    ]
    (tmp_path / "mypkg" / "impl.py").unlink()
    written(tmp_path, FILES)
    assert [(model.module, model.call) for model in candidates(tmp_path)] == [
        ("mypkg.net", "Net()"),
        ("mypkg.sub.zoo", "build_small()"),
    ]


def test_it_shows_first_and_writes_nothing_unasked(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = init(*MODELS)
    assert "add --yes" in str(done.exception)
    assert '"mypkg.net:Net",' in done.output
    assert not any(line.endswith(" ") for line in done.output.splitlines())
    monkeypatch.setattr("compilewatch.extras.gate.init._on_terminal", lambda: True)
    assert init(*MODELS, answer="n\n").exception is None
    assert not (root / TEST).exists()
    assert "compilewatch" not in (root / "pyproject.toml").read_text()
    assert init(*MODELS, answer="y\n").exception is None
    assert (root / TEST).exists()


def test_test_settings_and_workflow_are_written_and_valid(root: Path) -> None:
    (root / ".git").mkdir()
    (root / ".git" / "HEAD").write_text("ref: refs/heads/develop\n")
    done = init("--yes", *MODELS)
    assert done.exception is None
    compile((root / TEST).read_text(), TEST, "exec")
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    assert settings["project"] == {"name": "mypkg"}
    assert settings["tool"]["compilewatch"] == {
        "models": ["mypkg.net:Net", "mypkg.sub.zoo:build_small"]
    }
    workflow = workflow_of((root / WORKFLOW).read_text())
    assert vendor_errors("github-workflows", workflow) == []
    assert workflow["on"]["push"] == {"branches": ["develop"]}
    assert "pytest tests/test_compile.py --compilewatch-update" in done.output


def test_nothing_is_overwritten(root: Path) -> None:
    init("--yes", *MODELS)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    again = init("--yes", "--model", "other:build")
    assert again.exception is None
    assert "left as it is: tests/test_compile.py exists" in again.output
    assert "left as it is: pyproject.toml has a table [tool.compilewatch]" in again.output
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_without_models_it_says_what_to_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "--model MODULE:FACTORY" in str(init("--yes").exception)
    assert str(init("--yes", "--model", "").exception) == "--model is empty: name MODULE:FACTORY"
    done = init("--yes", "--model", "mypkg:build")
    assert "there is no pyproject.toml" in done.output
    assert not (tmp_path / "pyproject.toml").exists()
