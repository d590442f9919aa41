"""One graph without guards, on models whose code depends on sizes, and on sound ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from compilewatch.api.choose import one_request
from compilewatch.environments import WORKER_VARIABLES
from compilewatch.extras.shapes.records import OneGraph
from compilewatch.extras.shapes.tracing import served_by_values, shapes_of
from compilewatch.records import Status

CASES = Path(__file__).parents[3] / "cases"
SOURCE = CASES / "one_graph.py"

ONLY_WITH_INDUCTOR = "Squeezed"


def printed_by(script: str, given: str = "") -> str:
    """What a script of the cases prints last, in a process with the variables of a worker."""
    done = subprocess.run(
        (sys.executable, script),
        cwd=CASES,
        env=os.environ | WORKER_VARIABLES,
        input=given,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def graphs() -> dict[str, OneGraph]:
    return msgspec.json.decode(printed_by("one_graph_evaluated.py"), type=dict[str, OneGraph])


def marked_lines() -> dict[str, int]:
    """The line marked `# size` of each model."""
    lines, model = {}, ""
    for number, line in enumerate(SOURCE.read_text().splitlines(), start=1):
        model = line[6:].partition("(")[0] if line.startswith("class ") else model
        if line.endswith("# size"):
            lines[model] = number
    return lines


def test_a_wrong_graph_is_found_at_its_line_and_a_sound_one_raises_no_alarm(
    graphs: dict[str, OneGraph],
) -> None:
    marked = marked_lines()
    wrong = {name for name, graph in graphs.items() if not graph.holds}
    assert wrong == marked.keys() - {ONLY_WITH_INDUCTOR}
    for name in wrong:
        lines = {
            call.needed_by.line
            for call in graphs[name].calls
            if call.status in (Status.MISMATCH, Status.ERROR) and call.needed_by is not None
        }
        # Torch assumes without a guard that a size is not 1, and says of no line that it needs it.
        assert lines == (set() if name == "BatchOfOne" else {marked[name]}), name


def test_plain_pytorch_says_the_same_of_every_size(graphs: dict[str, OneGraph]) -> None:
    asked = {}
    for name, graph in graphs.items():
        assert len(graph.calls) > 10, name
        asked[name] = [list(graph.captured.values())]
        asked[name] += [list(call.sizes.values()) for call in graph.calls]
    expected = json.loads(printed_by("plain_one_graph.py", json.dumps(asked)))
    said = {
        name: ["pass", *(call.status for call in graph.calls)] for name, graph in graphs.items()
    }
    assert said == expected


def test_the_command_finds_what_inductor_alone_gets_wrong() -> None:
    """Starts a worker and compiles with Inductor, as servers do: the only test that does both."""
    sizes = ("--vary", "x.0=1..4", "--one-graph", "--buckets")
    command = (sys.executable, "-m", "compilewatch", "shapes", f"{SOURCE}:{ONLY_WITH_INDUCTOR}")
    done = subprocess.run((*command, *sizes), capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "without guards: wrong" in done.stdout
    assert "compiled with inductor" in done.stdout
    assert "differs: x.0 1\n" in done.stdout
    assert "x.0 >= 2, which torch assumes without a guard" in done.stdout
    assert "right: x.0 2 to 4\n" in done.stdout
    assert "Buckets of x.0" in done.stdout


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("model", ["BertModel", "ResNetModel"])
def test_models_of_transformers_raise_no_alarm(model: str) -> None:
    """A minute each: real classes with masks and positions, which the small models lack."""
    request, settings = one_request(
        model,
        target="dynamo:aot_eager",
        mode="eval",
        dynamic=None,
        inputs_file=None,
        flags={"jobs": 1},
    )
    names = ("batch",) if model == "ResNetModel" else ("batch", "sequence")
    served = served_by_values([f"{name}=1..8" for name in names])
    graph = shapes_of(request, settings, served, one_graph=True).one_graph
    assert graph is not None
    assert graph.holds, graph
    assert {call.status for call in graph.calls} == {Status.PASS}
    assert len(graph.calls) >= 5
