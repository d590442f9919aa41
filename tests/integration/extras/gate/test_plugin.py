"""The plug-in in a repository of an author, through pytest as they run it."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.gating import BRANCH, NET, WHERE

pytestmark = pytest.mark.torch

TESTS = """
import unittest
import pytest
import torch
from mypkg.net import Net

def test_function(compile_check):
    compile_check(Net(), torch.ones(2, 4))

class TestClass:
    def test_method(self, compile_check):
        compile_check(Net(), torch.ones(2, 4), mode="train")

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
template, path, *steps = json.loads(sys.argv[1])
ended = []
for line, *arguments in steps:
    with open(path, "w") as stream:
        stream.write(template.format(line=line))
    for name in list(sys.modules):
        if name.split(".")[0] in ("mypkg", "vendored", "test_net"):
            del sys.modules[name]
    linecache.clearcache()
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = pytest.main(["-p", "no:cacheprovider", "-q", *arguments])
    ended.append((int(code), out.getvalue()))
print("\\n" + json.dumps(ended))
"""


class Repository:
    """A package with tests, and an installed package that it uses."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("pyproject.toml", '[tool.pytest.ini_options]\npythonpath = ["src", "lib"]\n')
        self.write("src/mypkg/__init__.py", "")
        self.write("lib/vendored.py", "")
        self.write("tests/test_net.py", TESTS)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def sessions(self, *steps: tuple[str, ...]) -> Any:
        """Run pytest once for each step, with this line in the model, in one Python process.

        Returns the exit status and what was printed of each.
        """
        order = json.dumps([NET, "src/mypkg/net.py", *steps])
        command = [sys.executable, "-B", "-c", DRIVER, order]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@pytest.mark.matrix
def test_a_new_break_fails_until_it_is_accepted_and_resolved_ones_are_reported(
    repository: Repository,
) -> None:
    """Runs pytest as an author does, since options, reports and exit statuses are what is shown."""
    sessions = repository.sessions(
        (WHERE,),
        (BRANCH, "--junitxml=junit.xml"),
        (BRANCH, "--compilewatch-update"),
        ("\n\n        renamed = 1\n        " + BRANCH,),
        (WHERE, "--compilewatch-strict", "-k", "function"),  # its check did not run
        (WHERE, "--compilewatch-strict"),
    )
    assert [code for code, _ in sessions] == [0, 1, 0, 0, 1, 1], sessions
    clean, broken, accepted, known, _, strict = (text for _, text in sessions)
    assert "checks: 3  new: 0  known: 0  moved: 0  resolved: 0" in clean

    assert "1 new graph break in own code" in broken
    assert "src/mypkg/net.py:14 in Net.scaled: GB0170 Data-dependent branching" in broken
    assert f"  > 14 |         {BRANCH}" in broken
    assert "src/mypkg/net.py:11 in forward" in broken
    assert "Explanation" not in broken  # Dynamo's own text comes with -v
    first = ET.parse(repository.root / "junit.xml").find(".//testcase[@name='test_function']")
    assert first is not None
    properties = {p.get("name"): p.get("value") for p in first.iterfind(".//property")}
    counts = {"checks": "1", "new": "1", "known": "0", "third_party": "0", "recompilations": "0"}
    assert properties == {f"compilewatch_{name}": count for name, count in counts.items()}

    assert "+ GB0170 Data-dependent branching in Net.scaled, src/mypkg/net.py" in accepted
    baseline = (repository.root / "compilewatch.baseline.json").read_text()
    assert json.loads(baseline)["breaks"][0]["check"] == "tests/test_net.py::Case::test_case"
    assert str(repository.root) not in baseline

    assert "checks: 3  new: 0  known: 1  moved: 0  resolved: 0" in known
    assert "resolved: GB0170 Data-dependent branching in Net.scaled" in strict


@pytest.mark.matrix
def test_the_controller_of_xdist_collects_what_its_workers_met(repository: Repository) -> None:
    """Starts two workers, since only they show that reports carry the checks."""
    ((code, text),) = repository.sessions((BRANCH, "-n", "2", "--compilewatch-update"))
    assert code == 0, text
    assert "checks: 3  new: 1" in text
    entry, _ = json.loads((repository.root / "compilewatch.baseline.json").read_text())["breaks"]
    assert entry["text"] == BRANCH


OF_ANOTHER = """
import pytest, torch
from mypkg.net import Net

@pytest.mark.compilewatch(third_party="fail")
def test_strict(compile_check):
    compile_check(Net(), torch.ones(2, 4))

@pytest.mark.compilewatch(recompilations=0)
def test_share(compile_check):
    compile_check(Net(), torch.ones(2, 4), recompilations=None, captured_share=1.1)

def test_typo(compile_check):
    compile_check(Net(), torch.ones(2, 4), recompilation=1)
"""


@pytest.mark.matrix
def test_breaks_of_installed_packages_fail_only_where_a_marker_or_keyword_says_so(
    repository: Repository,
) -> None:
    """Two sessions in a process with torch: pytest's path decides what is installed."""
    noisy = "def noisy(x):\n    print('noisy')\n    return x\n"
    repository.write("site-packages/vendored.py", noisy)
    (repository.root / "lib" / "vendored.py").unlink()
    path = '[tool.pytest.ini_options]\npythonpath = ["src", "site-packages"]\n'
    repository.write("pyproject.toml", path)
    repository.write("tests/test_strict.py", OF_ANOTHER)
    line = "y = vendored.noisy(y)"
    reported, failed = repository.sessions((line, "-k", "function"), (line, "tests/test_strict.py"))
    assert (reported[0], failed[0]) == (0, 1), (reported, failed)
    assert "in other packages: 1" in reported[1]
    assert "in another package: vendored.py:2 in noisy: GB0059" in reported[1]
    assert "3 failed" in failed[1]
    assert "graph break in vendored.py:2" in failed[1]
    assert "at least 110.0% wanted" in failed[1]
    assert "has no keyword 'recompilation'; did you mean 'recompilations'?" in failed[1]


def test_a_session_without_checks_imports_no_torch_and_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(
        "import sys\ndef test_plain():\n    assert 'torch' not in sys.modules\n"
        "    assert 'compilewatch.api.check' not in sys.modules\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    assert "compilewatch" not in done.stdout


DYNAMIC = """
import pytest, torch

class Any(torch.nn.Module):
    def forward(self, x, mask=None):
        return x * x.shape[0] if x.shape[0] > 3 else x

class Special(Any):
    def forward(self, x, mask=None):
        if x.shape[0] == 4:
            x = x + 1
        return x

class Reshaped(Any):
    def forward(self, x, mask=None):
        return x.reshape(4, -1) * 2

X = torch.ones(4, 3)

@pytest.mark.parametrize("model", [Any, Special, Reshaped])
def test_kept(compile_check, model):
    compile_check(model(), X, dynamic={"x": [0]})

@pytest.mark.parametrize("model", [Any, Special, Reshaped])
def test_plain(model):
    x = X.clone()
    torch._dynamo.reset()
    torch._dynamo.mark_dynamic(x, 0)
    torch.compile(model(), backend="eager")(x)
"""


@pytest.mark.matrix
def test_a_dimension_that_is_to_be_dynamic_is_judged_as_torch_judges_it(
    repository: Repository,
) -> None:
    """Runs pytest on three models, and plain torch on the same: torch says which specialise."""
    repository.write("tests/test_net.py", DYNAMIC)
    ((_, text),) = repository.sessions((WHERE,))
    for name in ("kept[Special]", "kept[Reshaped]", "plain[Special]", "plain[Reshaped]"):
        assert f"FAILED tests/test_net.py::test_{name}" in text
    assert "4 failed, 2 passed" in text
    assert 'test_net.py", line 10, in forward: if x.shape[0] == 4:' in text
    assert "but your code specialized it to be a constant (4)" in text


SIZES = """
import pytest, torch

class Sound(torch.nn.Module):
    def forward(self, x, *masks):
        return x * 2

class Branch(Sound):
    def forward(self, x):
        return x + 1 if x.shape[0] > 37 else x * 2

class Multiple(Sound):
    def forward(self, x):
        if x.shape[0] % 8:
            x = x + 1
        return x

class Listed(Sound):
    def forward(self, x):
        return torch.stack([x[i] for i in range(x.shape[0])])

class One(Sound):
    def forward(self, x):
        if x.shape[0] == 1:
            x = x + x.sum().item()
        return x

class Pairs(Sound):
    def forward(self, x):
        return x.reshape(-1, 2, 3)

class Nested(Sound):
    def forward(self, batch, *others, **more):
        return batch["ids"] * others[0] + more["mask"]

class Behind(Sound):
    def forward(self, x):
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1 if y.shape[0] == 4 else y

X = torch.ones(4, 3)
RANGE = {"x": {0: (1, 64)}}

@pytest.mark.parametrize("model", [Sound, Branch, Multiple, Listed, One, Pairs])
@pytest.mark.compilewatch(vary=RANGE, compilations=2)
def test_vary(compile_check, model):
    compile_check(model(), X)

def test_better(compile_check):
    compile_check(Branch(), X, vary=RANGE, compilations=4)

def test_together(compile_check):
    names = ("batch['ids']", "others[0]", "mask")
    vary = {name: {0: (1, 64), 1: (1, 512)} for name in names}
    arguments = {"ids": X}, X + 1
    result = compile_check(Nested(), *arguments, mask=X + 2, vary=vary, compilations=4)
    assert result.graphs == 4
    kept = {name: [0] for name in names}
    compile_check(Nested(), *arguments, mask=X + 2, dynamic=kept)

@pytest.mark.parametrize("options", [
    {"dynamic": {"x": [0]}, "vary": RANGE},
    {"dynamic": {"X": [0]}},
    {"vary": {"x": {0: 64}}},
])
def test_wrong(compile_check, options):
    compile_check(Sound(), X, **options)

def test_one(compile_check):
    compile_check(Sound(), X[:1], dynamic={"x": [0]})

def test_behind(compile_check):
    compile_check(Behind(), x=X, dynamic={"x": [0]})
"""


def test_calls_of_other_sizes_fail_with_the_cause_and_the_line_of_each_compilation(
    repository: Repository,
) -> None:
    """Runs pytest as an author does: 13 checks, whose messages name lines of the test's own file.

    It takes 20 seconds, and only it shows that what torch says of a line comes out at that line.
    """
    repository.write("tests/test_net.py", SIZES)
    ((_, text),) = repository.sessions((WHERE,))
    of = dict(re.findall(r"_ test_(\S+) _+\n(.*?)(?=\n_{5,}|\n={5,})", text, re.DOTALL))
    assert set(of) == {
        *(f"vary[{name}]" for name in ("Branch", "Multiple", "Listed", "One", "Pairs")),
        *("wrong[options0]", "wrong[options1]", "wrong[options2]", "one", "behind"),
    }, text
    for name, cause in (
        ("Branch", "branch on a size x.0, tests/test_net.py:10: return x + 1 if x.shape[0] > 37"),
        ("Multiple", "size x.0, tests/test_net.py:14: if x.shape[0] % 8; pad to a multiple"),
        ("Listed", "constant of the code x.0, tests/test_net.py:20: return torch.stack([x[i] for"),
    ):
        assert "compilations, 2 accepted:\n" in of[f"vary[{name}]"]
        assert cause in of[f"vary[{name}]"]
    assert "call 4, x.0=64: branch" in of["vary[Branch]"]
    assert "tests/test_net.py:25 in One.forward: GB" in of["vary[One]"]
    assert "the model fails in eager mode: with x.0=1: RuntimeError: shape" in of["vary[Pairs]"]
    assert "two checks: make one after the other" in of["wrong[options0]"]
    assert "no dimension 'X.0', but batch, x.0, x.1; did you mean 'x.0'?" in of["wrong[options1]"]
    assert "x.0 is a range such as (1, 64), not 64" in of["wrong[options2]"]
    assert "x.0 is 1, and torch compiles sizes 0 and 1 apart" in of["one"]
    assert "y.0, tests/test_net.py:39" in of["behind"]
    assert "remove the graph break before it" in of["behind"]
