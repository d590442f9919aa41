"""What a fix cannot be verified for is refused; nothing of a verification outlives it."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

import pytest

from compilewatch.config import load_settings
from compilewatch.errors import UsageError
from compilewatch.extras.fixes import fixing
from compilewatch.extras.fixes.fixing import find_fix, run_verification
from compilewatch.extras.fixes.records import LATE
from compilewatch.records import DeclaredDevice, Target
from tests.factories import request


@pytest.mark.parametrize("target", [Target(name="export"), Target(backend="aot_eager")])
def test_another_target_or_backend_is_rejected(target: Target) -> None:
    with pytest.raises(UsageError, match="leave out --target, or name dynamo"):
        find_fix(request(target=target), load_settings({}))


def test_a_declared_device_is_rejected() -> None:
    device = DeclaredDevice(
        name="cuda",
        product="NVIDIA H100",
        capability=(9, 0),
        memory_bytes=2**36,
        multiprocessors=132,
        bfloat16=True,
    )
    wanted = request(device=device)
    with pytest.raises(UsageError, match="leave out --device"):
        find_fix(wanted, load_settings({}))


FORKS = """
import os, sys, time
holds = os.open({fifo!r}, os.O_WRONLY)  # and so does the fork
if os.fork() == 0:
    time.sleep(600)
time.sleep(600 if "--one-at-a-time" in sys.argv else 0)
sys.exit("no model")
"""


@pytest.mark.process
def test_forks_of_a_verification_end_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork has the output, too: waiting for its end would take as long as the model hangs."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = FORKS.format(fifo=str(fifo))
    for alone, seconds, failure in (
        (True, 30, "the verification runs: no model"),
        (False, 0.5, f"{LATE}: not within 0.5 s"),
    ):
        monkeypatch.setattr(fixing, "VERIFICATION_SECONDS", seconds)
        with os.fdopen(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), "rb") as held:
            assert run_verification(script, sys.executable, {}, alone=alone).failure == failure
            assert select.select([held], [], [], 5)[0]
            assert held.read() == b""  # nobody holds it any more
