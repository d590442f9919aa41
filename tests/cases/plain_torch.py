"""What torch alone says about the modules of breaks.py: no code of ours takes part.

Its `explain` runs them, and its structured trace, counters and `fullgraph=True` are read.

Run with TORCH_TRACE set to an empty folder. Prints one JSON object, case name -> figures.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from breaks import CASES, Case
from torch._dynamo.utils import counters

ARTIFACT = '"name": "dynamo_graph_break_reason"'


def reports() -> int:
    logs = Path(os.environ["TORCH_TRACE"]).glob("*.log")
    return sum(log.read_text().count(ARTIFACT) for log in logs)


def figures(case: Case) -> dict[str, Any]:
    counters.clear()
    module, before = case.build().eval(), reports()
    explained = torch._dynamo.explain(module)
    with torch.no_grad():
        explanation = explained(torch.ones(3, 4))
    frames = counters["frames"]
    return {
        "graphs": explanation.graph_count,
        "ops": explanation.op_count,
        "guards": len(explanation.out_guards),
        "reports": reports() - before,
        "cuts": sum(counters["graph_break"].values()),
        "given_up": frames["total"] - frames["ok"],
        "fullgraph": accepts_fullgraph(module),
    }


def accepts_fullgraph(module: torch.nn.Module) -> bool:
    torch._dynamo.reset()
    try:
        with torch.no_grad():
            torch.compile(module, fullgraph=True, backend="eager")(torch.ones(3, 4))
    except Exception:  # noqa: BLE001  (whatever refuses, refuses)
        return False
    return True


if __name__ == "__main__":
    answers = {case.name: figures(case) for case in CASES}
    sys.stdout.write("\n" + json.dumps(answers))
