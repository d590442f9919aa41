"""Models that are compiled again for a known cause: the same as plain torch finds, at its line.

25 seconds of CPU time for all of them: only torch itself shows which guards fail.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from shaped import SHAPED, Shaped, marked_line

from compilewatch.config import load_settings
from compilewatch.environments import WORKER_VARIABLES, Environments
from compilewatch.records import Mode, ShapeSeries
from compilewatch.worker.targets.dynamo.versions import guard_text
from tests.integration.worker.targets.conftest import CASES_FOLDER

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

SOURCES = CASES_FOLDER.parents[1] / "src"
PLACE = "shaped.py"


class Said:
    """What compilewatch and plain torch say of all cases, each in a process of an environment."""

    def __init__(self, environment: str) -> None:
        python = Environments(load_settings().cache_folder).interpreter(environment).path
        printed = self._printed(python, "evaluated_shaped.py")
        self.ours = msgspec.json.decode(printed, type=dict[str, ShapeSeries])
        self.plain: dict[str, dict[str, Any]] = json.loads(self._printed(python, "plain_shaped.py"))

    @staticmethod
    def _printed(python: str, script: str) -> bytes:
        variables = os.environ | WORKER_VARIABLES | {"PYTHONPATH": str(SOURCES)}
        command = [python, script]
        done = subprocess.run(command, cwd=CASES_FOLDER, env=variables, capture_output=True)
        assert done.returncode == 0, done.stderr[-2000:].decode()
        return done.stdout.splitlines()[-1]


@pytest.fixture(
    scope="module",
    params=[
        "default",
        pytest.param("torch-2.13", marks=[pytest.mark.torch_2_13, pytest.mark.matrix]),
    ],
)
def said(request: pytest.FixtureRequest) -> Said:
    return Said(request.param)


@pytest.mark.parametrize("case", SHAPED, ids=lambda case: case.name)
def test_each_cause_is_found_at_its_line_and_each_guard_is_that_of_plain_torch(
    case: Shaped, said: Said
) -> None:
    for mode in Mode:
        for dynamic, causes in ((None, case.as_called), (True, case.dynamic)):
            name = f"{case.name} {mode.value} {dynamic}"
            ours, plain = said.ours[name], said.plain[name]
            again = ours.recompilations
            assert [(one.call, one.kind, one.subject) for one in again] == [
                (cause.call, cause.kind, cause.subject) for cause in causes
            ]
            lines = [one.needed_by and (one.needed_by.file, one.needed_by.line) for one in again]
            assert lines == [
                (PLACE, marked_line(case.name)) if cause.marked else None for cause in causes
            ]
            assert (ours.limit is not None) is case.limit
            assert [call.error for call in ours.calls if call.error] == []
            assert [call.compiled for call in ours.calls] == plain["graphs"]
            logged = [(call, sorted(guards_in(message))) for call, message in plain["messages"]]
            # What reaches the limit is logged, but not compiled.
            assert logged[: len(logged) - case.limit] == [
                (one.call, sorted(one.guards)) for one in again
            ]


def guards_in(message: str) -> Iterator[str]:
    """The guards in a message of `TORCH_LOGS=recompiles`, as a recompilation has them."""
    yield from map(guard_text, re.findall(r"- (\d+/\d+: .*)", message))
