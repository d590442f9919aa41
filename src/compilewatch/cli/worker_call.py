"""Ask a worker one thing that is not a request: its inputs, a script."""

from __future__ import annotations

import subprocess
from typing import TypeVar

import msgspec

from compilewatch import environments
from compilewatch.errors import InputsError
from compilewatch.records import Request

T = TypeVar("T")


def call_worker(verb: str, request: Request, kind: type[T]) -> T:
    """What `compilewatch.worker.oneshot` answers. Raises InputsError in the model's own words."""
    done = subprocess.run(
        [
            environments.interpreter(request.environment).path,
            "-m",
            "compilewatch.worker.oneshot",
            verb,
        ],
        input=msgspec.json.encode(request),
        env=environments.worker_variables(request.environment),
        capture_output=True,
        check=False,
        timeout=request.deadlines.total_seconds,
    )
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise InputsError(f"{request.model.name}: {lines[-1]}")
    return msgspec.json.decode(done.stdout, type=kind)
