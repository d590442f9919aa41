"""A log that is longer than one response, fetched as a whole."""

from __future__ import annotations

import httpx2

from compilewatch.extras.executor.protocol import JobRequest
from compilewatch.extras.executor.sandbox.policy import SandboxLimits
from compilewatch.extras.executor.service import LOG_BYTES
from compilewatch.extras.papers.execution import job_ran
from compilewatch.extras.papers.records import FindingClass
from tests.integration.extras.executor.conftest import TOKEN, Executor

SIZE = 3 * 2**20
PRINTED = """
import sys
line = "x" * 1023
for _ in range(3 * 1024):
    print(line)
print('METRICS: {"training_loss": 0.125}')
sys.stderr.write("e" * (2**20 + 5) + "\\nthe last line\\n")
"""


def test_three_megabytes_of_output_arrive_and_the_last_line_counts(executor: Executor) -> None:
    client = executor.client()
    request = JobRequest(files={"main.py": PRINTED}, limits=SandboxLimits(deadline_seconds=30.0))
    client.submit("chatty", request)
    state = client.wait("chatty")
    stdout = client.whole_log("chatty")
    stderr = client.whole_log("chatty", stream="stderr")
    assert len(client.log("chatty").data) == LOG_BYTES  # one response is not the log
    assert stdout.startswith(b"x" * 1023 + b"\n")
    assert len(stdout) > SIZE
    assert stderr.endswith(b"\nthe last line\n")
    assert len(stderr) == 2**20 + 5 + len(b"\nthe last line\n")
    ran = job_ran(state, stdout, stderr)
    assert ran.numbers["training_loss"] == 0.125
    assert ran.findings == ()
    # Without the end of the log, the loss would be missing and the training no success.
    cut = job_ran(state, stdout[:LOG_BYTES], stderr)
    assert [finding.kind for finding in cut.findings] == [FindingClass.CRASHED]


def test_the_founding_call_returns_all_of_the_output(executor: Executor) -> None:
    response = httpx2.post(
        f"{executor.url}/execute",
        json={"paper_id": "chatty", "code": PRINTED, "timeout": 30},
        headers={"Authorization": f"Bearer {TOKEN}"},
        timeout=60,
    )
    found = response.json()
    assert found["success"]
    assert len(found["stdout"]) > SIZE
    assert found["detailed_metrics"] == {"training_loss": 0.125}
