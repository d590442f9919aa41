"""The script in processes that can fork: what it does when a fork dies, and what it prints."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from compilewatch.environments import WORKER_VARIABLES
from compilewatch.extras.fixes.search import WITHOUT
from compilewatch.extras.fixes.worker.script import verification_text

pytestmark = pytest.mark.torch

MODEL = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        y = x * self.scale
        if torch.isnan(y).any():
            raise ValueError("not a number")
        if y.sum() > 1000000:
            {branch}
        return y


def build(seed):
    torch.manual_seed(seed)
    return Model()


def inputs(shape):
    return (torch.rand(3 if shape == "first shape" else 5, 2),), {{}}
"""

RIGHT = """
def forward(self, x):
    y = x * self.scale
    torch._assert_async(~torch.isnan(y).any(), "not a number")
    return torch.where(y.sum() > 1000000, y - 1, y)
"""

FIX = """
@contextlib.contextmanager
def compilable(model, args, kwargs, options):
    with contextlib.ExitStack() as stack:
        {line}
        yield args, kwargs


subject = ScriptSubject(build, inputs, compilable)
"""

PATCH = 'stack.enter_context(mock.patch.object(Model, "forward", forward))'


def ran(
    folder: Path, *arguments: str, forward: str = "", line: str = "pass", branch: str = "y = y - 1",
    last: str = "sys.exit(main(subject))", before: str = "",
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a script of the text of the verification, a model and a fix."""
    script = folder / "verify.py"
    parts = [
        verification_text(),
        "from unittest import mock",
        textwrap.dedent(MODEL.format(branch=branch)),
        forward,
        FIX.format(line=line),
        f'if __name__ == "__main__":\n{textwrap.indent(last, "    ")}\n',
    ]
    script.write_text("\n\n".join(parts))
    start = f"import runpy, sys\n{before}\nrunpy.run_path({str(script)!r}, run_name='__main__')"
    return subprocess.run(
        [sys.executable, "-c", start, *arguments],
        env={n: v for n, v in os.environ.items() if n != "PYTHONPATH"} | WORKER_VARIABLES,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def said(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.stdout, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_right_fix_is_verified(tmp_path: Path) -> None:
    """Only a complete run shows the exit status 0, which needs Inductor.

    PyTorch does not depend on NumPy, and says "Numpy is not available" where a value is asked for.
    """
    without_numpy = "sys.modules['numpy'] = None"
    done = ran(tmp_path, forward=RIGHT, line=PATCH, before=without_numpy)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert lines[-1] == "verified"
    assert "ok   fullgraph=True accepts it: both shapes" in lines
    raised = "ok   results for NaN: an error as in eager mode (ValueError"
    assert any(line.startswith(raised) for line in lines)
    assert "breaks: 2 without the fix, 0 with it" in lines


REFUSED = """
def refused(shape):
    return (torch.rand(3, 2) if shape == "first shape" else torch.rand(3, 2, 2),), {}


def checked(self, x, forward=Model.forward):
    if x.dim() > 2:
        raise ValueError("too many dimensions")
    return forward(self, x)


Model.forward = checked
"""


@pytest.mark.matrix
def test_inputs_that_do_not_suit_the_model_are_not_blamed_on_the_fix(tmp_path: Path) -> None:
    """Only a complete run shows it."""
    last = "subject.inputs = refused\nsys.exit(main(subject))"
    done = ran(tmp_path, forward=REFUSED, last=last)
    assert done.returncode == 3
    line = "FAIL the inputs of both shapes suit the model: ValueError: too many dimensions"
    assert line in done.stdout.splitlines()


@pytest.mark.matrix
def test_functions_of_the_verification_in_one_process(tmp_path: Path) -> None:
    """Only a process that forks shows them: death, errors, values, frames that are given up."""
    last = """
    def beside():
        with Forks(2) as forks:
            slow = forks.start(lambda: (time.sleep(0.2), 2)[1])
            quick, waiting = forks.start(lambda: 1), forks.start(lambda: 2)
            results = [forks.result(slow), forks.result(quick), forks.result(waiting)]
            forks.start(lambda: time.sleep(600))  # is ended with the others
            return results


    say(json.dumps({
        "values": [untouched(lambda: [1, "two"]), beside()],
        "errors": [untouched(lambda: 1 / 0), untouched(lambda: sys.exit("ended"))],
        "ends": [untouched(lambda: os._exit(1)), untouched(lambda: os.kill(os.getpid(), 9))],
        "bytes of the model": warm_up(subject),
        "at a time": [at_a_time(8), at_a_time(10**15)],
        "captured": untouched(lambda: captured(subject, calls=1)),
        "left behind": untouched(lambda: left_behind(subject)),
        "unusual": untouched(lambda: captured_with_results(subject))["unusual"],
        "without last": [
            without_last(torch.ones(2, 3, dtype=torch.int64)).tolist(),
            without_last(torch.ones(3, dtype=torch.bool)).tolist(),
            without_last(torch.tensor(5)).item(),
        ],
    }))
    """
    line = "torch.set_default_dtype(torch.float32)"
    found = said(ran(tmp_path, last=textwrap.dedent(last), line=line))
    assert found["values"] == [[1, "two"], [2, 1, 2]]
    errors = ("ZeroDivisionError: division by zero", "SystemExit: ended")
    assert found["errors"] == [{"raised": error} for error in errors]
    assert found["ends"][0] == {"raised": "the process ended"}
    assert found["ends"][1]["raised"].startswith("the process was killed")
    assert found["bytes of the model"] == 4  # one parameter
    assert found["at a time"] == [min(2, os.cpu_count() or 1), 1]
    # Nothing is left for a third graph.
    figures = {name: found["captured"][name] for name in ("late", "breaks", "graphs")}
    assert figures == {"late": 0, "breaks": 2, "graphs": 2}
    assert found["left behind"] == [True, ""]
    kinds = {kind: (passed, detail) for kind, passed, detail, _ in found["unusual"]}
    passed, detail = kinds.pop("NaN")
    assert passed
    assert detail.startswith("an error as in eager mode")
    assert list(kinds.values()) == [(True, "")] * 4  # without integers
    assert found["without last"] == [[[1, 1, 0]] * 2, [True, True, False], 5]


@pytest.mark.matrix
def test_a_model_that_ends_its_process_for_unusual_values(tmp_path: Path) -> None:
    """Only a process shows it: there is nothing to compare then, and the fix is not to blame."""
    last = "say(json.dumps(untouched(lambda: captured_with_results(subject))['unusual']))"
    found = said(ran(tmp_path, branch="os.abort()", last=last))
    kinds = {kind: (passed, detail) for kind, passed, detail, _ in found}
    assert kinds["infinity"] == (True, "eager mode ends the process")
    assert kinds["zeros"] == (True, "")


@pytest.mark.matrix
def test_an_error_that_only_inductor_loses_is_not_verified(tmp_path: Path) -> None:
    """Only what Inductor compiled shows it; here the compiler is made to lose a check."""
    losing = """
    torch._inductor.config.post_grad_custom_pre_pass = lambda graph: [
        graph.erase_node(node) for node in list(graph.nodes) if "_assert" in str(node.target)
    ]
    """
    last = f"{textwrap.dedent(losing)}\nsay(json.dumps(equal_with_inductor(subject)))"
    found = said(ran(tmp_path, forward=RIGHT, line=PATCH, last=last))
    assert found["step"] == [False, "no error for NaN, for which eager mode raises one"]


@pytest.mark.matrix
def test_an_error_of_inductor_without_the_fix_is_not_blamed_on_it(tmp_path: Path) -> None:
    """Only Inductor raises it; here it is made to fail for all models."""
    failing = """
    def fail(graph):
        raise AssertionError("no such stride")

    torch._inductor.config.post_grad_custom_pre_pass = fail
    """
    last = f"{textwrap.dedent(failing)}\nsay(json.dumps(equal_with_inductor(subject)))"
    passed, detail = said(ran(tmp_path, last=last))["step"]
    assert not passed
    assert "no such stride" in detail
    assert detail.endswith(f"({WITHOUT})")  # for which the search ends


@pytest.mark.matrix
def test_the_cost_of_calls_is_measured_with_the_fix_and_without_it(tmp_path: Path) -> None:
    """Only real calls of compiled models have a time; Inductor compiles four graphs."""
    done = ran(tmp_path, "--cost", forward=RIGHT, line=PATCH)
    assert done.returncode == 0, done.stderr[-2000:]
    found = said(done)
    assert list(found) == ["eager", "without", "with"]
    assert all(0 < seconds < 10 for seconds in found.values())
