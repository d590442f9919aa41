"""The supervisor of a sandbox, as a separate process."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from compilewatch.extras.executor import sandbox
from compilewatch.extras.executor.sandbox.policy import SandboxEnding, SandboxResult

SLOW_AFTER_KILLING = """
import sys, time
sys.path.insert(0, sys.argv[1])
from compilewatch.extras.executor.sandbox import supervisor
kill = supervisor.Supervisor._kill
def killed(self):
    kill(self)
    time.sleep(0.5)
supervisor.Supervisor._kill = killed
supervisor.main()
"""


def test_a_caller_that_ends_while_the_sandbox_starts_has_cancelled_it() -> None:
    """Where the sandbox was gone before the supervisor went on, the job counted as failed."""
    data = msgspec.msgpack.encode(sandbox.planned(["python", "-c", "print('ran')"]))
    source = sandbox.__file__.removesuffix("/compilewatch/extras/executor/sandbox/__init__.py")
    done = subprocess.run(
        [sys.executable, "-I", "-c", SLOW_AFTER_KILLING, source],
        input=len(data).to_bytes(4, "big") + data,
        stdout=subprocess.PIPE,
        env={},
        cwd="/",
        check=True,
    )
    result = msgspec.msgpack.decode(done.stdout, type=SandboxResult)
    assert result.ending is SandboxEnding.CANCELLED
    assert result.detail == "its caller ended before it began"
    assert result.stdout == b""
    assert result.survivors == 0
