"""A break behind three calls is found at its line; models of other kinds have a verdict, too."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compilewatch
from compilewatch.extras.gate.judgement import CheckReport, Rules, judge

pytestmark = pytest.mark.torch

HERE, X = Path(__file__).parent, torch.ones(2, 4)

CHAIN = {
    "__init__.py": "",
    "net.py": """
import torch
from chain.attention import attend

class Net(torch.nn.Module):
    def forward(self, x):
        return attend(x * 2)
""",
    "attention.py": """
from chain.kernels import choose

def attend(x):
    return choose(x) + 1
""",
    "kernels.py": """
def choose(x):
    return available()(x)

def available():
    try:
        import fast_attention_that_is_not_installed
        return fast_attention_that_is_not_installed.attend
    except ImportError:
        return abs
""",
}
"""An optional kernel is looked for inside of the compiled region, three calls below the model."""


def report(root: Path, model: Callable[..., Any], *args: Any, **rules: Any) -> CheckReport:
    found = compilewatch.check(model, *args)
    return judge(found, (), Rules(root=root, **rules), name="t::a")


def test_an_import_three_calls_inside_is_found_with_the_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chain").mkdir()
    for name, text in CHAIN.items():
        (tmp_path / "chain" / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    net = importlib.import_module("chain.net")
    (found,) = report(tmp_path, net.Net(), X).of("new")
    assert (found.file, found.function) == ("chain/kernels.py", "available")
    assert found.text == "import fast_attention_that_is_not_installed"
    assert [each.file for each in found.user_stack] == [
        *("chain/net.py", "chain/attention.py", "chain/kernels.py", "chain/kernels.py")
    ]
    for name in [name for name in sys.modules if name.startswith("chain")]:
        del sys.modules[name]


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.linear.register_forward_hook(lambda _, __, y: y * 2 if y.sum() > 0 else y)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def generate(x: Tensor) -> Iterator[Tensor]:
    yield x + 1


def test_breaks_of_a_hook_and_a_generator_have_their_function() -> None:
    for model, function in ((Hooked(), "Hooked.__init__"), (generate, "generate")):
        checked = report(HERE, model, X)
        assert checked.problems == ()
        assert [graph_break.function for graph_break in checked.of("new")] == [function]


def test_a_model_that_fails_alone_is_one_line() -> None:
    checked = report(HERE, nn.Linear(4, 4))
    (problem,) = checked.problems
    assert "in eager mode: " in problem
    assert problem.endswith("argument: 'input': correct it or its arguments")
    assert "Traceback" in checked.error


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_models_of_torch_jit_do_not_pass() -> None:
    """Dynamo calls them as they are, without a graph."""
    scripted = report(HERE, torch.jit.script(nn.Linear(4, 4)), X)
    assert "torch.compile does not support compiling torch.jit.script" in scripted.problems[0]
    (problem,) = report(HERE, torch.jit.trace(nn.Linear(4, 4), X), X).problems
    assert problem.startswith("nothing of it is captured, as of a model of torch.jit")
