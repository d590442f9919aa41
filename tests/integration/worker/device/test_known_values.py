"""Values that are known on a declared device behave as they do on a real one."""

import subprocess
import sys

import pytest

from compilewatch.environments import Environments, worker_variables

pytestmark = [pytest.mark.torch]

KNOWN_VALUES = """
import torch
from compilewatch.contract.targets import declared
from compilewatch.worker.device import declare
from compilewatch.worker.model.fake_mode import InputAwareFakeMode

declare(declared("cuda"))
device = torch.device("cuda", 0)
mode = InputAwareFakeMode(device)
ids = mode.known(torch.arange(12).view(2, 6))
with mode:
    weight = torch.empty(5, 5, device="cuda")
    assert (ids * 2)[1, 3].item() == 18 and (ids * 2).device == device
    mask = ids > 3
    assert tuple(ids[mask].shape) == (8,) and ids[mask].device == device
    assert tuple(mask.nonzero().shape) == (8, 2)
    assert ids.cpu()[0, 1].item() == 1 and ids.cpu().device.type == "cpu"
    assert torch.tensor([1, 2], device="cuda").tolist() == [1, 2]
    assert torch.tensor([1, 2]).cuda().tolist() == [1, 2]
    try:
        torch.tensor([weight[0, 0]], device="cuda")  # read below the fake mode
    except RuntimeError as error:
        assert "its data is not allocated yet" in str(error), error
    else:
        raise AssertionError("an unknown value was read")
    counted = torch.arange(3, device="cuda")
    rest = counted[1:]
    rest += 5
    assert counted.tolist() == [0, 6, 7]
    counted.add_(weight[0, :3].long())
    for unknown in (counted, rest):  # what was written to an alias is not known either
        try:
            unknown.tolist()
        except Exception as error:
            assert type(error).__name__ == "DataDependentOutputException"
        else:
            raise AssertionError("a stale value")
    try:
        torch.cat([ids, torch.arange(12).view(2, 6)])
    except Exception as error:
        assert "same device" in str(error)
    else:
        raise AssertionError("devices were mixed")
    assert (ids + torch.tensor(3)).device == device  # a number may be on the CPU
    repeated = torch.repeat_interleave(torch.arange(2, device="cuda"), torch.tensor([2, 3]).cuda())
    assert tuple(repeated.shape) == (5,)
print("as on a device")
"""


CPU_BUILD = """
import ctypes
import torch

torch.version.cuda = None
guards = "_ZN3c104impl26device_guard_impl_registryE"
(ctypes.c_void_p * 22).in_dll(ctypes.CDLL(torch._C.__file__), guards)[1] = None
"""
"""Makes a CUDA build look like a CPU build, which has no guard for CUDA."""


BUILDS = ("", CPU_BUILD)

EACH = """
import os, sys, traceback
import torch
from compilewatch.worker.device import declare
from compilewatch.worker.model.fake_mode import InputAwareFakeMode

for script in sys.argv[1:]:
    pid = os.fork()
    if pid == 0:
        try:
            exec(script, {})
        except BaseException:
            traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)
    print(end="\\f", flush=True)
"""
"""Imports torch once, and runs each script in a fork, as the worker server does."""


def test_known_values_behave_as_on_a_device_in_each_build() -> None:
    """A process can declare one device."""
    done = subprocess.run(
        [sys.executable, "-c", EACH, *(build + KNOWN_VALUES for build in BUILDS)],
        env=worker_variables(Environments().interpreter("default")),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\f")[:-1] == ["as on a device\n"] * len(BUILDS)
