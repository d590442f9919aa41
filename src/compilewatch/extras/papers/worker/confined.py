"""`worker.process.confined`: evaluates one request inside of the sandbox of generated code.

It reads `start.json` in the current folder and writes the files of a child into the folder that the
message names. The sandbox limits the process from outside; see `launchers.confined`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from compilewatch.contract.messages import START_FILE, Start
from compilewatch.worker.process import child, warmup

if __name__ == "__main__":
    start = msgspec.json.decode(Path(START_FILE).read_bytes(), type=Start)
    folder = Path(start.folder)
    folder.mkdir(parents=True, exist_ok=True)
    target = start.request.target.name
    child.evaluate(start, folder, lambda: warmup.import_modules([target]))
