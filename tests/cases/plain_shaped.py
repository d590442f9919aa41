"""What torch alone says about the models of shaped.py: no code of ours takes part.

A plain `torch.compile` is called, and what `TORCH_LOGS=recompiles` writes is read.

Prints one JSON object: `branch eval True` -> graphs of each call, and each message with its call.
"""

import json
import logging
import sys
from typing import Any

import torch
from shaped import SHAPED, Shaped
from torch._dynamo.utils import counters


class Recompiles(logging.Handler):
    """Receives what `TORCH_LOGS=recompiles` writes."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.messages: list[tuple[int, str]] = []
        self.call = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append((self.call, record.getMessage()))


def figures(case: Shaped, *, train: bool, dynamic: bool | None) -> dict[str, Any]:
    torch._dynamo.reset()
    recompiles = Recompiles()
    logger = logging.getLogger("torch._dynamo.guards.__recompiles")
    logger.addHandler(recompiles)
    backend = "aot_eager_default_partitioner" if train else "eager"
    compiled = torch.compile(case.build().train(train), backend=backend, dynamic=dynamic)
    graphs = []
    for recompiles.call in range(1, len(case.calls) + 1):
        counters.clear()
        with torch.set_grad_enabled(train):
            compiled(*case.arguments(recompiles.call))
        graphs.append(counters["stats"]["unique_graphs"])
    logger.removeHandler(recompiles)
    return {"graphs": graphs, "messages": recompiles.messages}


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch._logging.set_logs(recompiles=True)
    answers = {
        f"{case.name} {mode} {dynamic}": figures(case, train=mode == "train", dynamic=dynamic)
        for case in SHAPED
        for mode in ("eval", "train")
        for dynamic in (None, True)
    }
    sys.stdout.write("\n" + json.dumps(answers))
