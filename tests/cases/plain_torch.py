"""What torch alone says about the modules of breaks.py: no code of ours takes part.

Its `explain` runs them, and its structured trace, counters and `fullgraph=True` are read. Each call
is the first one of a module, in a fork of its own.

Prints one JSON object, case name -> figures.
"""

import gc
import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from breaks import CASES, Case
from torch._dynamo.utils import counters

ARTIFACT = "dynamo_graph_break_reason"


class Reports(logging.Handler):
    """Counts the graph breaks in torch's structured trace."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        artifact = getattr(record, "metadata", {}).get("artifact", {})
        Reports.count += artifact.get("name") == ARTIFACT


def figures(case: Case) -> dict[str, Any]:
    counters.clear()
    module = case.build().eval()
    explained = torch._dynamo.explain(module)
    with torch.no_grad():
        explanation = explained(torch.ones(3, 4))
    frames = counters["frames"]
    return {
        "graphs": explanation.graph_count,
        "ops": explanation.op_count,
        "guards": len(explanation.out_guards),
        "reports": Reports.count,
        "cuts": sum(counters["graph_break"].values()),
        "given_up": frames["total"] - frames["ok"],
    }


def second_call(case: Case) -> int:
    """How many graph breaks the second call of a compiled module reports."""
    compiled = torch.compile(case.build().eval(), backend="eager")
    with torch.no_grad():
        compiled(torch.ones(3, 4))
        before = Reports.count
        compiled(torch.ones(3, 4))
    return Reports.count - before


def accepts_fullgraph(case: Case) -> bool:
    module = case.build().eval()
    try:
        with torch.no_grad():
            torch.compile(module, fullgraph=True, backend="eager")(torch.ones(3, 4))
    except Exception:  # noqa: BLE001  (whatever refuses, refuses)
        return False
    return True


def apart(function: Callable[[Any], Any], case: Any) -> Any:
    """What a function returns in a fork, which changes no global of this process."""
    read, write = os.pipe()
    if os.fork() == 0:
        # The threads of autograd would race for the pool that a fork must replace, and abort.
        torch.set_num_threads(1)
        os.write(write, json.dumps(function(case)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        said = stream.read()
    _, status = os.wait()
    if status:
        sys.exit(f"{function.__name__} of {case.name} ended with wait status {status}")
    return json.loads(said)


def answers(case: Case) -> dict[str, Any]:
    return {
        **apart(figures, case),
        "fullgraph": apart(accepts_fullgraph, case),
        "second_call": apart(second_call, case),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.getLogger("torch.__trace").addHandler(Reports(logging.DEBUG))
    torch._dynamo.explain(torch.nn.Linear(4, 4))(torch.ones(3, 4))  # imports what the forks need
    torch._dynamo.reset()
    Reports.count = 0
    gc.disable()  # collections in forks copy the pages of all objects
    gc.freeze()
    sys.stdout.write("\n" + json.dumps({case.name: answers(case) for case in CASES}))
