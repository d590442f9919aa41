"""What C++ needs of a CUDA device when fake tensors are on it: a guard, and whether it was used.

Tried with CUDA builds of torch 2.11, 2.13 and 2.15 and with a CPU build of torch 2.14. Nothing here
runs code of CUDA or needs its driver.
"""

import ctypes
import warnings
from ctypes import CFUNCTYPE, POINTER, addressof, c_int64, c_void_p, cast
from typing import Any

import torch
from torch._subclasses import fake_tensor

from compilewatch.worker.device import DeviceUnavailableError

_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
_HOOKS = "_ZN2at6detail12getCUDAHooksEv"
_HOOKS_TABLE = "_ZTVN2at18CUDAHooksInterfaceE"
_HAS_CONTEXT = "_ZNK2at18CUDAHooksInterface17hasPrimaryContextEa"
_IS_BUILT = "_ZNK2at24AcceleratorHooksInterface7isBuiltEv"

_CUDA = 1
"""`c10::DeviceType::CUDA` (c10/core/DeviceType.h), an index of the registry of guards."""

_DEVICE_TYPES = 22
_HAS_CONTEXT_SLOT, _IS_BUILT_SLOT = 4, 2
"""Positions in the table of virtual functions of `at::CUDAHooksInterface`, which begins with two
destructors (ATen/detail/AcceleratorHooksInterface.h)."""

_HOOKS_SLOTS = 80
"""At least the number of virtual functions of `at::CUDAHooksInterface`."""


def install() -> None:
    """Install torch's guard for fake devices, and hooks that deny that a device was used.

    Raises DeviceUnavailableError, before anything is changed, if this torch is not as expected.
    """
    try:
        # A symbol is also looked for in the libraries that a library needs, wherever they are:
        # wheels have them in torch/lib, packages of a distribution have not.
        torchs = ctypes.CDLL(torch._C.__file__)
        guards = (c_void_p * _DEVICE_TYPES).in_dll(torchs, _GUARDS)
        table = (c_void_p * _HOOKS_SLOTS).in_dll(torchs, _HOOKS_TABLE)
        hooks = torchs[_HOOKS]
    except (OSError, ValueError, AttributeError) as error:
        raise _differs(str(error)) from None
    if not hasattr(torch._C, "_ensureCUDADeviceGuardSet"):
        raise _differs("torch._C._ensureCUDADeviceGuardSet is missing")
    if not isinstance(vars(fake_tensor.FakeTensorMode).get("avoid_device_init"), property | bool):
        raise _differs("FakeTensorMode.avoid_device_init is missing")
    if not hasattr(fake_tensor, "init_gpu_context"):
        raise _differs("fake_tensor.init_gpu_context is missing")
    _check_hooks(torchs, table)
    _install_guard(guards)
    if torch.version.cuda is not None:
        _deny_contexts(hooks, table)
    let_reads_fail("CUDA")
    # Both are about `torch.cuda.is_available()`, which is about to say yes. Values of fake tensors
    # must stay on the CPU, and torch 2.11 would put a real one on the device.
    fake_tensor.FakeTensorMode.avoid_device_init = True
    fake_tensor.init_gpu_context = lambda _: None


def _check_hooks(torchs: ctypes.CDLL, table: Any) -> None:
    """Raise DeviceUnavailableError if the virtual functions are not where they are expected."""
    for symbol, slot in ((_HAS_CONTEXT, _HAS_CONTEXT_SLOT), (_IS_BUILT, _IS_BUILT_SLOT)):
        try:
            address = cast(torchs[symbol], c_void_p).value
        except AttributeError:
            continue  # inline functions are not exported by every compiler
        if table[2 + slot] != address:  # two words precede the functions of a table
            raise _differs(f"{symbol} is not virtual function {slot}")


def _install_guard(guards: Any) -> None:
    """Let torch replace the guard for CUDA by its own for fake devices (`FakeGuardImpl`).

    It does so for a guard that reports no device: the one of a CUDA build without a driver. A CPU
    build has none, so an object is put there of which every function returns 0.
    """
    if not guards[_CUDA]:
        zero = CFUNCTYPE(c_int64, c_void_p)(lambda _: 0)
        functions = (c_void_p * 64)(*[cast(zero, c_void_p).value] * 64)
        guard = (c_void_p * 1)(addressof(functions))
        _keep(zero, functions, guard)
        guards[_CUDA] = addressof(guard)
    before = guards[_CUDA]
    torch._C._ensureCUDADeviceGuardSet()
    if guards[_CUDA] == before and torch.version.cuda is None:
        guards[_CUDA] = None
        raise _differs("the guard for fake devices was not installed")


def _deny_contexts(hooks: Any, base: Any) -> None:
    """Let `hasPrimaryContext` say no; in a CUDA build without a driver, it raises.

    The backward of autograd calls it for each device. The object gets a copy of its table in which
    `isBuilt` of the base class, which returns false, takes the place of the function.
    """
    hooks.restype = c_void_p
    instance = cast(hooks(), POINTER(c_void_p))
    table = (c_void_p * _HOOKS_SLOTS).from_address(instance[0])
    copied = (c_void_p * _HOOKS_SLOTS)(*table)
    copied[_HAS_CONTEXT_SLOT] = base[2 + _IS_BUILT_SLOT]
    _keep(copied)
    instance[0] = addressof(copied)


def let_reads_fail(key: str) -> None:
    """Let a read of a fake tensor's element fail as on a device, instead of for the missing driver.

    `key` is the dispatch key of the device.

    C++ code such as `torch.tensor([scalar])` reads elements below the fake mode. The kernel of CUDA
    then asks the tensor for its data (aten/src/ATen/native/cuda/CUDAScalar.cu), and a fake tensor
    has none. No other tensor can be on the declared device.
    """

    def read(tensor: torch.Tensor) -> Any:  # noqa: ARG001
        raise RuntimeError(
            "The tensor has a non-zero number of elements, but its data is not allocated yet."
        )

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a CUDA build has a kernel, which is replaced
        library.impl("_local_scalar_dense", read, key)
    _keep(library)


def _keep(*objects: Any) -> None:
    """Never free these objects: C++ uses them until the process has ended, after Python has."""
    for kept in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _differs(what: str) -> DeviceUnavailableError:
    return DeviceUnavailableError(
        f"torch {torch.__version__} cannot hold fake CUDA tensors without a device ({what}); "
        "torch 2.11 to 2.15 on Linux can"
    )
