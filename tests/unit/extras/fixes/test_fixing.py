"""What a fix cannot be proven for is refused before anything runs."""

from __future__ import annotations

import pytest

from compilewatch.config.settings import load_settings
from compilewatch.errors import UsageError
from compilewatch.extras.fixes.fixing import find_fix
from compilewatch.records import DeclaredDevice, Target
from tests.factories import request


@pytest.mark.parametrize("target", [Target(name="export"), Target(backend="aot_eager")])
def test_another_target_or_backend_is_refused(target: Target) -> None:
    with pytest.raises(UsageError, match="leave out --target, or name dynamo"):
        find_fix(request(target=target), load_settings({}))


def test_a_declared_device_is_refused() -> None:
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
