"""A minimal reproducer of a worker that answers here."""

import subprocess
from pathlib import Path

import msgspec
import pytest

from compilewatch.environments import Environments
from compilewatch.errors import InputsError
from compilewatch.extras.fixes import minimal_reproducer
from tests import factories


@pytest.mark.parametrize(
    ("status", "out", "error", "message"),
    [
        (0, msgspec.json.encode(("", "not reached")), b"", r"^not reached$"),
        (1, b"", b"Traceback\nno graph break occurs", r"^BertModel: no graph break occurs$"),
    ],
)
def test_a_failure_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    out: bytes,
    error: bytes,
    message: str,
) -> None:
    ended = subprocess.CompletedProcess([], status, out, error)
    monkeypatch.setattr(minimal_reproducer, "oneshot", lambda *_: ended)
    with pytest.raises(InputsError, match=message):
        minimal_reproducer.write(Environments(tmp_path), factories.request(), at=None, issue=False)
