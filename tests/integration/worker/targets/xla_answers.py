"""Run by the tests in the environment xla: requests in (JSON lines), a result each out.

A fork a request, as the server makes them, of a process that is warmed up as the server is.
"""

import os
import sys
from pathlib import Path

import msgspec

from compilewatch.records import Request, Tier
from compilewatch.worker import phases
from compilewatch.worker.process.warmup import warm_up


def answer(request: Request, folder: Path) -> None:
    (folder / "artifacts").mkdir(parents=True)
    marks: list[str] = []
    found = phases.evaluate(request, Tier.REAL, folder, lambda phase: marks.append(phase.value))
    (folder / "phases.json").write_bytes(msgspec.json.encode(marks))
    (folder / "result.json").write_bytes(msgspec.json.encode(found.result))


def main() -> None:
    warm_up(("xla",))
    for line in sys.stdin:
        folder, _, encoded = line.partition("\t")
        request = msgspec.json.decode(encoded, type=Request)
        if os.fork() == 0:
            answer(request, Path(folder))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.wait()[1])
        (Path(folder) / "status").write_text(str(status))


if __name__ == "__main__":
    main()
