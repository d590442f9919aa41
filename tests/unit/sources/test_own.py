"""Models of one's own, found and checked without importing anything."""

import os
from pathlib import Path
from typing import Any

import pytest

from compilewatch.errors import ConfigError, MissingModuleError
from compilewatch.records import ModelSpec
from compilewatch.sources.own import own_model, with_inputs

NET = """
import torch
from torch import nn
raise RuntimeError("imported")
class Block(nn.Module):
    def __init__(self, width): ...
class Net(torch.nn.Module):
    def __init__(self):
        self.block = Block(8)
"""
BUILD = """
def inputs():
    return {}
def _helper():
    return 1
def build(width=8):
    return Net()
"""
WIDTH = "def width():\n    return 8\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder. What lies beside a model need not be a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.py").mkdir()
    (tmp_path / "gone.py").symlink_to("nowhere")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def build_of(spec: ModelSpec | None) -> Any:
    assert spec is not None
    return spec.build


def built(name: str, python_path: tuple[Path, ...] = ()) -> tuple[str, str | None]:
    build = build_of(own_model(name, python_path))
    return build.factory, build.path


@pytest.mark.parametrize(
    ("name", "text", "factory"),
    [
        # The only function that returns a model, however the file is named.
        *((name, NET + BUILD, "build") for name in ("./mynet.py", "mynet.py")),
        *((f"{name}build", NET + BUILD, "build") for name in ("./mynet.py:", "mynet:")),
        # Without functions, the class that no other uses.
        ("./mynet.py", NET, "Net"),
        # Of several functions, the one that is called like a factory.
        ("mynet.py", NET + BUILD + WIDTH, "build"),
    ],
)
def test_the_factory_of_a_file(here: Path, name: str, text: str, factory: str) -> None:
    write(here / "mynet.py", text)
    assert built(name) == (f"mynet:{factory}", str(here))


def test_a_module_is_found_where_it_lies(here: Path) -> None:
    write(here / "code" / "pkg" / "__init__.py", "")
    write(here / "code" / "pkg" / "nets.py", NET + BUILD)
    assert built("code/pkg/nets.py:build") == ("pkg.nets:build", str(here / "code"))
    # Folders of the Python path come first.
    write(here / "lib" / "theirs.py", BUILD)
    first, second = here / "none", here / "lib"
    both = f"{first}{os.pathsep}{second}"
    assert built("theirs:build", (first, second)) == ("theirs:build", both)
    assert built("jinja2:Environment") == ("jinja2:Environment", None)
    assert own_model("someone/something") is None


def test_modules_are_searched_in_the_environment(here: Path) -> None:
    """In one with packages that are not installed here."""
    packages = here / "venv" / "site-packages"
    write(packages / "elsewhere" / "nets.py", BUILD)
    write(here / "sources" / "editable.py", BUILD)
    write(packages / "editable.pth", f"import site\n{here / 'sources'}\n")
    root = packages / "transformers"
    for name in ("elsewhere.nets:build", "editable:build"):
        build = build_of(own_model(name, root=root))
        assert (build.factory, build.path) == (name, None)
        with pytest.raises(MissingModuleError):
            own_model(name)
    with pytest.raises(MissingModuleError):
        own_model("jinja2:Environment", root=root)


def test_a_missing_package_says_what_to_type() -> None:
    with pytest.raises(MissingModuleError) as caught:
        own_model("cv2:thing")
    assert str(caught.value).endswith(
        "for an installed package, the model needs the package opencv-python-headless, which is "
        "not in this environment: `compilewatch env create opencv-python-headless --with "
        "opencv-python-headless`, then --environment opencv-python-headless"
    )


def test_a_callable_makes_the_inputs(here: Path) -> None:
    write(here / "mynet.py", NET + BUILD)
    write(here / "other" / "data.py", "def batch():\n    return {}\n")
    spec = own_model("mynet:build")
    assert spec is not None
    build, made = build_of(spec), build_of(with_inputs(spec, "./other/data.py:batch"))
    assert (made.factory, made.inputs) == ("mynet:build", "data:batch")
    assert made.path == f"{here / 'other'}{os.pathsep}{here}"
    assert made.source_sha256 != build.source_sha256
    assert build_of(with_inputs(spec, "mynet:inputs")).inputs == "mynet:inputs"
    for name, says in (
        ("mynet:none", "has no none"),
        ("nowhere:f", "there is no module nowhere"),
        ("mynet:", "expected a file or MODULE:FUNCTION"),
    ):
        with pytest.raises(ConfigError, match=says):
            with_inputs(spec, name)


TWO = "class N(Module): ...\ndef one():\n    return 1\ndef two():\n    return 2\n"


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        (TWO, "./m.py", "factories: name one of ./m.py:one, ./m.py:two, ./m.py:N"),
        ("x = " + "-" * 100_000 + "1\n", "./m.py", "m.py"),
        ("def build(:\n", "./m.py", "m.py:1: SyntaxError: invalid syntax: def build(:"),
        ("x = 1\n", "m:nofn", "m.py has no nofn: give MODULE:FACTORY"),
        ("def f(): ...\n", "./m.py:nofn", "it defines f"),
        ("x = 1\n", "./m.py", "no function without arguments that returns a module"),
        ("def f(a, b=1, *, c): ...\n", "m:f", "m:f needs a, c: name a function without"),
        ("class N:\n    def __init__(self, a): ...\n", "m:N", "m:N needs a:"),
        ("", "./nodir", "the folder nodir does not exist: name a folder with a config.json"),
        ("", "./no.py", "the file no.py does not exist"),
        ("", "nowhere:f", "there is no module nowhere on the Python path: give MODULE:FACTORY"),
        ("", ".", "has no config.json: name a folder"),
    ],
)
def test_what_is_wrong_is_one_line(here: Path, text: str, name: str, says: str) -> None:
    write(here / "m.py", text)
    with pytest.raises(ConfigError) as caught:
        own_model(name)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "from elsewhere import make\n",
        "from elsewhere import *\n",
        "make = partial(Net, 8)\n",
        "try:\n    from a import make\nexcept ImportError:\n    make = None\n",
        "def __getattr__(name): ...\n",
        "globals().update(make=1)\n",
        "def make(*args, **kwargs): ...\n",
    ],
)
def test_names_that_a_file_may_define_are_left_to_the_worker(here: Path, text: str) -> None:
    write(here / "m.py", '"""A docstring."""\nprint(1)\n' + text)
    assert built("m:make") == ("m:make", str(here))
