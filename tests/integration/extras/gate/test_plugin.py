"""The plug-in in a repository of an author, through pytest as they run it."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.torch

NET = """
import torch
import vendored

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.scaled(self.linear(x))

    def scaled(self, y):
        {line}
        return y + 1
"""
BRANCH = "y = y * 2 if y.sum() > 0 else y"
WHERE = "y = torch.where(y.sum() > 0, y * 2, y)"

TESTS = """
import unittest
import pytest
import torch
from mypkg.net import Net

def test_function(compile_check):
    compile_check(Net(), torch.ones(2, 4))

class TestClass:
    @pytest.mark.parametrize("batch", [2, 3])
    def test_method(self, compile_check, batch):
        compile_check(Net(), torch.ones(batch, 4), mode="train")

class Case(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def checks(self, compile_check):
        self.compile_check = compile_check

    def test_case(self):
        self.compile_check(Net(), torch.ones(2, 4))
"""


DRIVER = """
import contextlib, io, json, linecache, sys
import pytest
(template, path), steps = json.loads(sys.argv[1])
found = []
for line, arguments in steps:
    if line is not None:
        with open(path, "w") as stream:
            stream.write(template.format(line=line))
    for name in list(sys.modules):
        if name.split(".")[0] in ("mypkg", "vendored", "test_net"):
            del sys.modules[name]
    linecache.clearcache()
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = pytest.main(["-p", "no:cacheprovider", "-q", *arguments])
    found.append((int(code), out.getvalue()))
print()
print(json.dumps(found))
"""


class Session(NamedTuple):
    """The exit status of pytest, and what it printed."""

    returncode: int
    stdout: str


class Repository:
    """A package with tests, and an installed package that it uses."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("pyproject.toml", '[tool.pytest.ini_options]\npythonpath = ["src", "lib"]\n')
        self.write("src/mypkg/__init__.py", "")
        self.write("lib/vendored.py", "")
        self.write("tests/test_net.py", TESTS)
        self.net(WHERE)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def net(self, line: str) -> None:
        self.write("src/mypkg/net.py", NET.format(line=line))

    def pytest(self, *arguments: str) -> Session:
        (found,) = self.sessions([(None, arguments)])
        return found

    def sessions(self, steps: Sequence[tuple[str | None, Sequence[str]]]) -> list[Session]:
        """Run pytest once for each step, with this line in the model, in one Python process."""
        done = subprocess.run(
            [sys.executable, "-B", "-c", DRIVER, json.dumps([(NET, "src/mypkg/net.py"), steps])],
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return [Session(*each) for each in json.loads(done.stdout.splitlines()[-1])]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@pytest.mark.matrix
def test_a_new_break_fails_until_it_is_accepted_and_resolved_ones_are_reported(
    repository: Repository,
) -> None:
    """Runs pytest as an author does, since options, reports and exit statuses are what is shown."""
    moved = "\n\n        renamed = 1\n        " + BRANCH
    clean, broken, accepted, known, some, strict = repository.sessions(
        [
            (WHERE, []),
            (BRANCH, ["--junitxml=junit.xml"]),
            (BRANCH, ["--compilewatch-update"]),
            (moved, []),
            (WHERE, ["--compilewatch-strict", "-k", "function"]),
            (WHERE, ["--compilewatch-strict"]),
        ]
    )
    assert clean.returncode == 0, clean.stdout
    assert "checks: 4  new: 0  known: 0  moved: 0  resolved: 0" in clean.stdout

    assert broken.returncode == 1
    assert "1 new graph break in own code" in broken.stdout
    assert "src/mypkg/net.py:14 in Net.scaled: GB0170 Data-dependent branching" in broken.stdout
    assert f"  > 14 |         {BRANCH}" in broken.stdout
    assert "src/mypkg/net.py:11 in forward" in broken.stdout
    assert "Explanation" not in broken.stdout  # Dynamo's own text comes with -v
    first = ET.parse(repository.root / "junit.xml").find(".//testcase[@name='test_function']")
    assert first is not None
    assert {p.get("name"): p.get("value") for p in first.iterfind(".//property")} == {
        "compilewatch_checks": "1",
        "compilewatch_new": "1",
        "compilewatch_known": "0",
        "compilewatch_third_party": "0",
        "compilewatch_recompilations": "0",
    }

    assert accepted.returncode == 0, accepted.stdout
    assert "+ GB0170 Data-dependent branching in Net.scaled, src/mypkg/net.py" in accepted.stdout
    baseline = json.loads((repository.root / "compilewatch.baseline.json").read_text())
    entry, _ = baseline["breaks"]
    assert entry["check"] == "tests/test_net.py::Case::test_case"
    assert str(repository.root) not in json.dumps(baseline)

    assert known.returncode == 0, known.stdout
    assert "checks: 4  new: 0  known: 1  moved: 0  resolved: 0" in known.stdout
    assert some.returncode == 1  # its check did not run, but its statement was removed
    assert strict.returncode == 1
    assert "resolved: GB0170 Data-dependent branching in Net.scaled" in strict.stdout


@pytest.mark.matrix
def test_the_controller_of_xdist_collects_what_its_workers_met(repository: Repository) -> None:
    """Starts two workers, since only they show that reports carry the checks."""
    repository.net(BRANCH)
    parallel = repository.pytest("-n", "2", "--compilewatch-update")
    assert parallel.returncode == 0, parallel.stdout
    assert "checks: 4  new: 1" in parallel.stdout
    entry, _ = json.loads((repository.root / "compilewatch.baseline.json").read_text())["breaks"]
    assert entry["text"] == f"{BRANCH}"


@pytest.mark.matrix
def test_breaks_of_installed_packages_are_counted_and_fail_only_where_wanted(
    repository: Repository,
) -> None:
    repository.write(
        "site-packages/vendored.py",
        "def noisy(x):\n    print('noisy')\n    return x\n",
    )
    (repository.root / "lib" / "vendored.py").unlink()
    repository.write(
        "pyproject.toml",
        '[tool.pytest.ini_options]\npythonpath = ["src", "site-packages"]\n',
    )
    line = "y = vendored.noisy(y)"
    repository.write(
        "tests/test_strict.py",
        "import pytest, torch\nfrom mypkg.net import Net\n"
        '@pytest.mark.compilewatch(third_party="fail")\n'
        "def test_strict(compile_check):\n    compile_check(Net(), torch.ones(2, 4))\n",
    )
    reported, failed = repository.sessions([(line, ["-k", "function"]), (line, ["-k", "strict"])])
    assert reported.returncode == 0, reported.stdout
    assert "in other packages: 1" in reported.stdout
    assert "in another package: vendored.py:2 in noisy: GB0059" in reported.stdout
    assert failed.returncode == 1
    assert "graph break in vendored.py:2" in failed.stdout


@pytest.mark.matrix
def test_rules_of_a_call_and_a_damaged_baseline(repository: Repository) -> None:
    repository.write(
        "tests/test_net.py",
        "import pytest, torch\n"
        "def double(x):\n    return x * 2\n"
        "SIZES = [torch.ones(n, 4) for n in (1, 2, 7)]\n"
        "def test_some(compile_check):\n    compile_check(double, calls=SIZES, recompilations=1)\n"
        "def test_none(compile_check):\n    compile_check(double, calls=SIZES, recompilations=0)\n"
        "@pytest.mark.compilewatch(captured_share=1.1)\n"
        "def test_share(compile_check):\n    compile_check(double, torch.ones(2))\n"
        "def test_typo(compile_check):\n"
        "    compile_check(double, torch.ones(2), recompilation=1)\n",
    )
    found = repository.pytest()
    assert "3 failed, 1 passed" in found.stdout
    assert "has no keyword 'recompilation'; did you mean 'recompilations'?" in found.stdout
    assert "1 recompilation, 0 accepted:" in found.stdout
    assert "tensor 'x' size mismatch at index 0. expected 1, actual 2" in found.stdout
    assert "captured share 100.0%, at least 110.0% wanted" in found.stdout
    repository.write("compilewatch.baseline.json", "{")
    damaged = repository.pytest()
    assert "4 failed" in damaged.stdout
    assert "During handling" not in damaged.stdout  # one line says it
    assert "delete it and run pytest with --compilewatch-update" in damaged.stdout


def test_a_session_without_checks_imports_no_torch_and_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(
        "import sys\ndef test_plain():\n    assert 'torch' not in sys.modules\n"
        "    assert 'compilewatch.api.check' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
    assert "compilewatch" not in done.stdout


DYNAMIC = """
import torch

class Net(torch.nn.Module):
    def forward(self, x, mask=None):
        return self.scaled(x)

class Any(Net):
    def scaled(self, x):
        return x * x.shape[0] if x.shape[0] > 3 else x

class Special(Net):
    def scaled(self, x):
        if x.shape[0] == 4:
            x = x + 1
        return x

class Reshaped(Net):
    def scaled(self, x):
        return x.reshape(4, -1) * 2

MODELS = [Any, Special, Reshaped]
X = torch.ones(4, 3)
"""


@pytest.mark.matrix
def test_a_dimension_that_is_to_be_dynamic_is_judged_as_torch_judges_it(
    repository: Repository,
) -> None:
    """Runs pytest on three models, and plain torch on the same: torch says which specialise."""
    repository.write("src/shapes.py", DYNAMIC)
    repository.write(
        "tests/test_net.py",
        "import pytest, torch\nfrom shapes import MODELS, X\n\n"
        "@pytest.mark.parametrize('model', MODELS)\n"
        "def test_kept(compile_check, model):\n"
        "    compile_check(model(), X, dynamic={'x': [0]})\n\n"
        "@pytest.mark.parametrize('model', MODELS)\n"
        "def test_plain(model):\n"
        "    x = X.clone()\n    torch._dynamo.reset()\n    torch._dynamo.mark_dynamic(x, 0)\n"
        "    torch.compile(model(), backend='eager')(x)\n\n"
        "def test_typo(compile_check):\n"
        "    compile_check(MODELS[0](), X, dynamic={'X': [0]})\n",
    )
    session = repository.pytest()
    for name in ("test_kept[Special]", "test_kept[Reshaped]", "test_plain[Special]"):
        assert f"FAILED tests/test_net.py::{name}" in session.stdout
    assert "FAILED tests/test_net.py::test_plain[Reshaped]" in session.stdout
    assert "5 failed, 2 passed" in session.stdout
    assert 'shapes.py", line 14, in scaled: if x.shape[0] == 4:' in session.stdout
    assert "but your code specialized it to be a constant (4)" in session.stdout
    assert "dynamic: the model gets no tensor 'X'" in session.stdout
