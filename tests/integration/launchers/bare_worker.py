"""Stands in for an environment's Python: the real server and children, models without torch.

What is under test is who starts, watches and ends processes. Without torch a server starts in a
fifth of a second, so that it can be killed as often as a test likes.
"""

import contextlib
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from compilewatch.contract.messages import ChildResult
from compilewatch.records import Depth, Phase, Request, Result, Status, Tier
from compilewatch.worker.process import warmup


def answer(
    request: Request, tier: Tier, folder: Path, mark: Callable[[Phase], None]
) -> ChildResult:
    behaviour = request.model.name.partition("-")[0]
    mark(Phase.CREATE)
    (folder / "artifacts" / "pid").write_text(str(os.getpid()))
    if behaviour == "hang":
        print("hanging", os.getpid())
        time.sleep(3600)
    if behaviour == "gate":
        gate = Path(request.model.checkpoint or "")
        (gate / f"started-{os.environ['RAY_RAYLET_PID']}").touch()
        while not (gate / "open").exists():
            time.sleep(0.01)
    if behaviour == "kill_server":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(3600)
    if behaviour == "stop_server":
        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(3600)
    if behaviour == "fill_disk":
        filler = Path(request.model.checkpoint or "")
        with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
    if behaviour == "exit":
        os._exit(int(os.environ["BARE_WORKER_EXIT"]))
    if behaviour == "crash_once":
        marker = Path(request.inputs_file or "")
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGBUS)
    result = Result(
        request=request,
        status=Status(os.environ.get("BARE_WORKER_STATUS", "pass")),
        phase=Phase.DONE,
        tier=tier,
        depth=Depth.FULL,
        started_at="2026-01-02T03:04:05Z",
    )
    return ChildResult(result=result)


def warm_up(targets: Iterable[str], *, single: bool = False, device: object = None) -> None:
    """As many idle threads beside the main one as a test asks for."""
    for _ in range(int(os.environ.get("BARE_WORKER_THREADS", "0"))):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()


if __name__ == "__main__":
    phases: Any = SimpleNamespace(evaluate=answer)  # the real one imports torch
    sys.modules["compilewatch.worker.phases"] = phases
    warmup.warm_up = warm_up  # type: ignore[assignment]
    warmup.import_modules = lambda targets: None  # type: ignore[assignment,misc]
    _, _, _, module, *rest = sys.argv  # this file, -P, the bootstrap, the module
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
