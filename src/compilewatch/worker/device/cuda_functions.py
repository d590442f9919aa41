"""What Python code learns about the declared device: the functions of `torch.cuda`.

The code of each function is replaced, not the function: Dynamo's tables know functions by identity,
and aliases such as `from torch.cuda import is_available` stay valid. A replacement sees the globals
of `torch.cuda`, so the properties are stored there.
"""

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.cuda.graphs
import torch.cuda.random
from torch._dynamo import device_interface

from compilewatch.records import DeclaredDevice
from compilewatch.worker.device import DeviceUnavailableError


def install(device: DeclaredDevice) -> None:
    """Let `torch.cuda` describe this device. Raises DeviceUnavailableError for another torch."""
    assert device.capability is not None
    major, minor = device.capability
    properties = types.SimpleNamespace(
        name=device.product,
        major=major,
        minor=minor,
        total_memory=device.memory_bytes,
        multi_processor_count=device.multiprocessors,
        # The same for every device of the list, or of no importance to a model.
        is_integrated=False,
        is_multi_gpu_board=False,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        gcnArchName="",
    )
    replaced = [
        (_function(module, name), replacement)
        for module, functions in _REPLACEMENTS.items()
        for name, replacement in functions.items()
    ]
    for module in (torch.cuda, torch.cuda.random, torch.cuda.graphs):
        vars(module)["_declared_properties"] = properties
        vars(module)["_declared_bfloat16"] = device.bfloat16
    for function, replacement in replaced:
        function.__code__ = replacement.__code__.replace(co_name=function.__name__)
        function.__defaults__ = replacement.__defaults__
        function.__kwdefaults__ = replacement.__kwdefaults__
    device_interface.init_device_reg()
    for name in ("cuda", "cuda:0"):
        device_interface.register_interface_for_device(name, device_interface.CudaInterface)


def _function(module: types.ModuleType, name: str) -> types.FunctionType:
    function = getattr(module, name, None)
    function = getattr(function, "__wrapped__", function)
    if not isinstance(function, types.FunctionType) or function.__closure__:
        raise DeviceUnavailableError(
            f"torch {torch.__version__}: {module.__name__}.{name} is not a plain function, so no "
            "device can be declared; torch 2.11 to 2.15 can"
        )
    return function


# The code of the functions below runs with the globals of the modules of torch.

# ruff: noqa: ARG005, F821
# mypy: disable-error-code="name-defined"

_REPLACEMENTS: dict[types.ModuleType, dict[str, Callable[..., Any]]] = {
    torch.cuda: {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda device=None: (
            _declared_properties.major,
            _declared_properties.minor,
        ),
        "get_device_properties": lambda device=None: _declared_properties,
        "get_device_name": lambda device=None: _declared_properties.name,
        "is_bf16_supported": lambda including_emulation=True: (
            _declared_bfloat16 or including_emulation
        ),
        "is_initialized": lambda: False,
        "_lazy_init": lambda: None,
        "synchronize": lambda device=None: None,
        "set_device": lambda device: None,
    },
    torch.cuda.memory: {"empty_cache": lambda: None},
    torch.cuda.random: {
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "set_rng_state": lambda new_state, device="cuda": None,
    },
    torch.cuda.graphs: {"is_current_stream_capturing": lambda: False},
    # True would make Dynamo use the current stream of the accelerator, which does not exist.
    torch.accelerator: {"is_available": lambda: False},
}
