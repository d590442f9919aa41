"""`worker.process.spawned FOLDER SERVER_PID`: a child that is not a fork of the server.

It is started by a server that cannot fork; see `Server`. It reads its request from `start.json` in
FOLDER and imports torch itself, in the phase `setup`, whose deadline includes the import.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from compilewatch.contract.messages import START_FILE, Start
from compilewatch.worker.process import child, warmup

if __name__ == "__main__":
    folder, server_pid = sys.argv[1:]
    start = msgspec.json.decode((Path(folder) / START_FILE).read_bytes(), type=Start)
    target = start.request.target.name
    child.main(start, int(server_pid), prepare=lambda: warmup.import_modules([target]))
