"""The script in processes that can fork: what it does when a fork dies, and what it prints."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.environments import WORKER_VARIABLES
from compilewatch.extras.fixes.records import FixCost
from compilewatch.extras.fixes.search import WITHOUT
from compilewatch.extras.fixes.worker.script import verification_text

pytestmark = [pytest.mark.torch, pytest.mark.matrix]

SUBJECT = """
from unittest import mock


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        y = x * self.scale
        if torch.isnan(y).any():
            raise ValueError("not a number")
        if y.sum() > 1000000:
            y = self.smaller(y)
        return y

    def smaller(self, y):
        return y - 1


def forward(self, x):
    y = x * self.scale
    torch._assert_async(~torch.isnan(y).any(), "not a number")
    return torch.where(y.sum() > 1000000, y - 1, y)


@contextlib.contextmanager
def compilable(model, args, kwargs, options):
    with mock.patch.object(Model, "forward", forward):
        yield args, kwargs


def build(seed):
    torch.manual_seed(seed)
    return Model()


def inputs(shape):
    return (torch.rand(3 if shape == "first shape" else 5, 2),), {}


subject = ScriptSubject(build, inputs, compilable)
without = ScriptSubject(build, inputs, lambda _, *given: contextlib.nullcontext(given[:2]))
"""

FUNCTIONS = """
def refused(shape):
    return (torch.rand(3, 2) if shape == "first shape" else torch.rand(3, 2, 2),), {}


def beside():
    with Forks(2) as forks:
        slow = forks.start(lambda: (time.sleep(0.2), 2)[1])
        quick, waiting = forks.start(lambda: 1), forks.start(lambda: 2)
        results = [forks.result(slow), forks.result(quick), forks.result(waiting)]
        forks.start(lambda: time.sleep(600))  # is ended with the others
        return results


def refusing():
    def checked(self, x, forward=Model.forward):
        if x.dim() > 2:
            raise ValueError("too many dimensions")
        return forward(self, x)

    Model.forward, without.inputs = checked, refused
    return main(without)


def ending():
    Model.smaller = lambda self, y: os.abort()
    return captured_with_results(without)["unusual"]


def losing():
    torch._inductor.config.post_grad_custom_pre_pass = lambda graph: [
        graph.erase_node(node) for node in list(graph.nodes) if "_assert" in str(node.target)
    ]
    return equal_with_inductor(subject, lambda: {"NaN": ("ValueError", True)})["step"]


def failing():
    def fail(graph):
        raise AssertionError("no such stride")

    torch._inductor.config.post_grad_custom_pre_pass = fail
    return equal_with_inductor(without, dict)["step"]


def sizes():
    def listed(self, x):
        return x + torch.tensor([1.0] * x.shape[0])[:, None]

    def fixed(value):
        def forward(self, x):
            return x + torch.full((x.shape[0],), value)[:, None]

        @contextlib.contextmanager
        def fix(_, args, kwargs, options):
            with mock.patch.object(Model, "forward", forward):
                yield args, kwargs

        return ScriptSubject(build, inputs, fix, shapes=True)

    Model.forward = listed
    return [for_sizes(subject) for subject in (fixed(1.0), fixed(2.0), without)]


ROUNDS = 1
say(json.dumps({
    "values": [untouched(lambda: [1, "two"]), beside()],
    "errors": [untouched(lambda: 1 / 0), untouched(lambda: sys.exit("ended"))],
    "ends": [untouched(lambda: os._exit(1)), untouched(lambda: os.kill(os.getpid(), 9))],
    "bytes of the model": warm_up(without),
    "at a time": [at_a_time(8), at_a_time(10**15)],
    "captured": untouched(lambda: captured(without, calls=1)),
    "left behind": untouched(lambda: left_behind(without)),
    "unusual": untouched(lambda: captured_with_results(without))["unusual"],
    "without last": [
        without_last(torch.ones(2, 3, dtype=torch.int64)).tolist(),
        without_last(torch.ones(3, dtype=torch.bool)).tolist(),
        without_last(torch.tensor(5)).item(),
    ],
    "cost": untouched(lambda: costs(subject)),
    **{each.__name__: untouched(each) for each in (refusing, ending, losing, failing, sizes)},
}))
"""


def ran(folder: Path, last: str, before: str = "") -> list[str]:
    """Run a script of the text of the verification, a model, its fix and an end; return lines."""
    script = folder / "verify.py"
    end = f'if __name__ == "__main__":\n{textwrap.indent(last, "    ")}\n'
    script.write_text("\n\n".join([verification_text(), SUBJECT, end]))
    start = f"import runpy, sys\n{before}\nrunpy.run_path({str(script)!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", start],
        env={n: v for n, v in os.environ.items() if n != "PYTHONPATH"} | WORKER_VARIABLES,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout.splitlines()


def test_a_right_fix_is_verified(tmp_path: Path) -> None:
    """Only a complete run shows the exit status 0, which needs Inductor.

    PyTorch does not depend on NumPy, and says "Numpy is not available" where a value is asked for.
    """
    lines = ran(tmp_path, "sys.exit(main(subject))", "sys.modules['numpy'] = None")
    assert lines[-1] == "verified"
    assert "ok   fullgraph=True accepts it: both shapes" in lines
    raised = "ok   results for NaN: an error as in eager mode (ValueError"
    assert any(line.startswith(raised) for line in lines)
    assert "breaks: 2 without the fix, 0 with it" in lines


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What functions of the verification print and return in one process."""
    return ran(tmp_path_factory.mktemp("functions"), FUNCTIONS)


@pytest.fixture
def results(lines: list[str]) -> Any:
    return json.loads(lines[-1])


def test_values_and_ends_of_forks(results: Any) -> None:
    """Only a process that forks shows them: death, errors, values, frames that are given up."""
    assert results["values"] == [[1, "two"], [2, 1, 2]]
    errors = ("ZeroDivisionError: division by zero", "SystemExit: ended")
    assert results["errors"] == [{"raised": error} for error in errors]
    assert results["ends"][0] == {"raised": "the process ended"}
    assert results["ends"][1]["raised"].startswith("the process was killed")
    assert results["bytes of the model"] == 4  # one parameter
    assert results["at a time"] == [min(2, os.cpu_count() or 1), 1]
    # Nothing is left for a third graph.
    figures = {name: results["captured"][name] for name in ("late", "breaks", "graphs")}
    assert figures == {"late": 0, "breaks": 2, "graphs": 2}
    assert results["left behind"] == [True, ""]
    kinds = {kind: (passed, detail) for kind, passed, detail, *_ in results["unusual"]}
    passed, detail = kinds.pop("NaN")
    assert passed
    assert detail.startswith("an error as in eager mode")
    assert list(kinds.values()) == [(True, "")] * 4  # without integers
    assert results["without last"] == [[[1, 1, 0]] * 2, [True, True, False], 5]


def test_what_is_not_the_fault_of_the_fix_is_not_blamed_on_it(
    lines: list[str], results: Any
) -> None:
    """Inputs that do not suit the model, one that ends its process, an error of Inductor."""
    assert results["refusing"] == 3
    line = "FAIL the inputs of both shapes suit the model: ValueError: too many dimensions"
    assert line in lines
    kinds = {kind: (passed, detail) for kind, passed, detail, *_ in results["ending"]}
    assert kinds["infinity"] == (True, "eager mode ends the process")
    assert kinds["zeros"] == (True, "")
    passed, detail = results["failing"]
    assert not passed
    assert "no such stride" in detail
    assert detail.endswith(f"({WITHOUT})")  # for which the search ends


def test_an_error_that_only_inductor_loses_is_not_verified(results: Any) -> None:
    assert results["losing"] == [False, "no error for NaN, for which eager mode raises one"]


def test_compilations_for_other_sizes_are_counted_without_the_fix_and_with_it(
    results: Any,
) -> None:
    """One that removes them, one that computes something else, and one that changes nothing."""
    right, wrong, same = results["sizes"]
    count, equal = "fewer compilations for other sizes", "results for other sizes"
    assert right["compilations"] == [5, 2]
    assert right[count] == [True, "5 without, 2 with the fix, 10 calls"]
    assert right[equal] == [True, "10 calls"]
    assert wrong[count][0]
    assert not wrong[equal][0]
    assert same[count] == [False, "5 without, 5 with the fix, 10 calls"]


def test_the_cost_of_calls_is_measured_with_the_fix_and_without_it(results: Any) -> None:
    cost = msgspec.convert(results["cost"], FixCost)
    assert all(0 < (s or 0) < 10 for s in (cost.eager, cost.without, cost.with_fix))
