"""A break behind three calls is found at its line; models of every kind are checked or refused."""

from __future__ import annotations

import importlib
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compilewatch
from compilewatch.errors import UsageError
from compilewatch.extras.gate.judgement import CheckReport, Rules, judge

pytestmark = pytest.mark.torch

X = torch.ones(2, 4)

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
    package = tmp_path / "chain"
    package.mkdir()
    for name, text in CHAIN.items():
        (package / name).write_text(text)
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


class Prints(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        print("printed")
        return x


class Exits(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        sys.exit(3)


class Downloads(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        urllib.request.urlopen("http://127.0.0.1:9/weights", timeout=5)
        return x


class ChangesGlobals(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float64)
        return x + 1


class Unpicklable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.function: Callable[[Tensor], Tensor] = lambda x: x + 1

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.linear.register_forward_hook(lambda _, __, y: y * 2 if y.sum() > 0 else y)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def generate(x: Tensor) -> Iterator[Tensor]:
    yield x + 1


def total(values: Any) -> Tensor:
    return sum(value.sum() for value in values)


async def coroutine(x: Tensor) -> Tensor:
    return x


@pytest.mark.parametrize(
    ("model", "breaks_at"),
    [
        (Prints(), "Prints.forward"),
        (Hooked(), "Hooked.__init__"),
        (generate, "generate"),
        (Unpicklable(), None),
        (ChangesGlobals(), None),
        (lambda x: x + 1, None),
        (torch.compile(nn.Linear(4, 4)), None),
    ],
    ids=["prints", "hook", "generator", "unpicklable", "globals", "lambda", "compiled"],
)
def test_models_of_every_kind_have_a_verdict(model: Any, breaks_at: str | None) -> None:
    found = report(Path(__file__).parent, model, X)
    assert found.problems == ()
    assert [each.function for each in found.of("new")] == ([breaks_at] if breaks_at else [])
    assert torch.get_default_dtype() is torch.float32


def test_tensors_with_gradients_keep_them() -> None:
    leaf = torch.ones(2, 4, requires_grad=True)
    (leaf * 3).sum().backward()
    found = report(Path(__file__).parent, nn.Linear(4, 4), leaf * 2)
    assert not found.failed
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, torch.full((2, 4), 3.0))


@pytest.mark.parametrize(
    ("model", "args", "said"),
    [
        (Exits(), (X,), "the model fails in eager mode: SystemExit: 3: correct it or"),
        (Downloads(), (X,), "the model fails in eager mode: URLError: "),
        (nn.Linear(4, 4), (), "missing 1 required positional argument: 'input': correct it"),
    ],
    ids=["exits", "network", "arguments"],
)
def test_a_model_that_fails_alone_is_one_line(model: Any, args: tuple[Any, ...], said: str) -> None:
    found = report(Path(__file__).parent, model, *args)
    (problem,) = found.problems
    assert said in problem
    assert "\n" not in problem
    assert "Traceback" in found.error


@pytest.mark.parametrize(
    ("make", "args", "said"),
    [
        (lambda: coroutine, (X,), "an async function"),
        (lambda: total, ((each for each in [X]),), "pass a list"),
        (lambda: torch.export.export(nn.Linear(4, 4), (X,)).module(), (X,), "has no modes"),
        (lambda: 3, (), "a model is a module, a function or a name, not int"),
    ],
    ids=["async", "generator", "exported", "number"],
)
def test_what_says_nothing_is_rejected_in_one_line(
    make: Callable[[], Any], args: tuple[Any, ...], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        compilewatch.check(make(), *args)
    assert "\n" not in str(raised.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_models_of_torch_jit_do_not_pass() -> None:
    """Dynamo calls them as they are, without a graph."""
    root = Path(__file__).parent
    scripted = report(root, torch.jit.script(nn.Linear(4, 4)), X)
    assert "torch.compile does not support compiling torch.jit.script" in scripted.problems[0]
    traced = report(root, torch.jit.trace(nn.Linear(4, 4), X), X)
    (problem,) = traced.problems
    assert problem.startswith("nothing of it is captured, as of a model of torch.jit")
