"""What torch alone says about the models of kinds.py: no code of ours takes part.

Each is compiled and called twice, and torch's structured trace is read: of each graph break the
code in the address of its page, and the innermost line in kinds.py of the traceback of user code.
Prints one JSON object, name -> [[line, code], …].
"""

import json
import logging
import os
import re

import torch
from kinds import KINDS, module_of
from plain_torch import ARTIFACT

REPORTS: list[str] = []


class Reports(logging.Handler):
    """Keeps the texts of graph breaks in torch's structured trace."""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "metadata", {}).get("artifact", {}).get("name") == ARTIFACT:
            REPORTS.append(record.payload)  # type: ignore[attr-defined]


def place(text: str) -> tuple[int, str]:
    code = re.search(r"/gb/gb(\d+)\.html", text)
    user_code = text.partition("User code traceback:")[2].partition("Traceback (most recent")[0]
    lines = re.findall(r'kinds\.py", line (\d+), in', user_code)
    assert code is not None, text
    return int(lines[-1]), f"GB{code[1]}"


def breaks(name: str) -> list[tuple[int, str]]:
    torch._dynamo.reset()
    REPORTS.clear()
    model = module_of(KINDS[name])().eval()
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        compiled(torch.ones(3, 4))
        compiled(torch.ones(3, 4))
    return sorted({place(text) for text in REPORTS})


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.getLogger("torch.__trace").addHandler(Reports(logging.DEBUG))
    channel = os.dup(1)
    os.dup2(2, 1)  # what the models print
    os.write(channel, json.dumps({name: breaks(name) for name in KINDS}).encode())
