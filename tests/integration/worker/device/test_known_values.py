"""Values that are known on a declared device behave as they do on a real one."""

import subprocess
import sys

import pytest

from compilewatch.environments import Environments, worker_variables

pytestmark = [pytest.mark.torch]

KNOWN_VALUES = """
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
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
    with pytest.raises(RuntimeError, match="its data is not allocated yet"):
        torch.tensor([weight[0, 0]], device="cuda")  # read below the fake mode
    counted = torch.arange(3, device="cuda")
    rest = counted[1:]
    rest += 5
    assert counted.tolist() == [0, 6, 7]
    counted.add_(weight[0, :3].long())
    for unknown in (counted, rest):  # what was written to an alias is not known either
        with pytest.raises(DataDependentOutputException):
            unknown.tolist()
    with pytest.raises(RuntimeError, match="same device"):
        torch.cat([ids, torch.arange(12).view(2, 6)])
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


OLD_DEVICE = """
import torch
from compilewatch.contract.targets import declared
from compilewatch.worker.device import declare
from compilewatch.worker.model.fake_mode import InputAwareFakeMode

declare(declared("cuda:T4"))

def forward(x):
    if torch.cuda.get_device_capability(x.device) < (8, 0):
        torch._dynamo.graph_break()
    return x + 1

with InputAwareFakeMode(torch.device("cuda", 0)):
    torch.compile(forward, backend="eager")(torch.ones(3, device="cuda"))
assert sum(torch._dynamo.utils.counters["graph_break"].values()) == 1
print("as on a device")
"""
"""Breaks on old devices only: the capability is a constant of the declared one."""

NEURON = """
import sys
import torch
from compilewatch.contract.targets import declared
from compilewatch.worker.device import declare

declare(declared("neuron:trn3"))
assert torch.accelerator.current_accelerator().type == "neuron"
assert torch.accelerator.is_available() and torch.neuron.device_count() == 1
assert torch.neuron.get_device_properties(0).total_memory == 36 * 2**30
assert torch.neuron is sys.modules["torch.neuron"]
try:
    torch.ones(1, device="neuron")
except NotImplementedError as error:
    assert "aten::empty.memory_format" in str(error)
    print("as on a device")
"""

PLACE_TAKEN = """
import torch
from compilewatch.contract.targets import declared
from compilewatch.worker.device import DeviceUnavailableError, declare

torch.utils.rename_privateuse1_backend("npu")
try:
    declare(declared("neuron"))
except DeviceUnavailableError as error:
    assert "'npu' takes" in str(error)
    print("as on a device")
"""

REGISTERED = """
import types
import torch
from compilewatch.contract.targets import declared
from compilewatch.worker.device import declare

torch.utils.rename_privateuse1_backend("neuron")
torch._register_device_module("neuron", types.ModuleType("torch.neuron"))
own = torch.neuron
declare(declared("neuron"))
assert torch.neuron is own
print("as on a device")
"""
"""TorchNeuron has registered its device: nothing is declared over it."""

SCRIPTS = (
    *(KNOWN_VALUES, CPU_BUILD + KNOWN_VALUES, OLD_DEVICE),
    *(KNOWN_VALUES.replace("cuda", "neuron"), NEURON, PLACE_TAKEN, REGISTERED),
)

EACH = """
import os, sys, traceback
import pytest, torch
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
"""Imports torch once, and runs each script in a fork: a process can declare one device."""


def test_a_declared_device_behaves_as_a_real_one_in_each_build() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EACH, *SCRIPTS],
        env=worker_variables(Environments().interpreter("default")),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\f")[:-1] == ["as on a device\n"] * len(SCRIPTS)
