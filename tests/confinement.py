"""Whether generated code can be confined here, which tests that run such code need."""

import os

import pytest

from compilewatch.errors import SandboxError
from compilewatch.extras.executor import sandbox


def need_sandbox() -> None:
    """Skip where bubblewrap is missing; fail in CI, and where a sandbox does not hold."""
    try:
        sandbox.check()
    except SandboxError as error:
        if os.environ.get("CI") or "is missing" not in str(error):
            pytest.fail(str(error))
        pytest.skip(str(error))
