"""The device `neuron` as torch sees it, registered as a backend that is written in Python.

TorchNeuron registers the same name (a PrivateUse1 device). The registration is torch's own and
experimental (`torch.utils.backend_registration`, tried with torch 2.13 to 2.15).
"""

import contextlib
import types
import warnings

import torch
from torch._subclasses import fake_tensor
from torch.utils import backend_registration

from compilewatch.records import DeclaredDevice
from compilewatch.worker.device import DeviceUnavailableError
from compilewatch.worker.device.cuda_internals import let_reads_fail


def install(device: DeclaredDevice) -> None:
    """Register the device; TorchNeuron's own stays if this process has it.

    Raises DeviceUnavailableError if this torch cannot.
    """
    if hasattr(torch, "neuron"):
        return
    setup = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
    if setup is None:
        raise DeviceUnavailableError(
            f"torch {torch.__version__} cannot declare a Neuron device; torch 2.13 to 2.15 can"
        )
    other = torch._C._get_privateuse1_backend_name()
    if other != "privateuseone":
        raise DeviceUnavailableError(
            f"torch has one place for such a device, which {other!r} takes in this environment"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        setup(rename="neuron", backend_module=_module(device))
    let_reads_fail("PrivateUse1")
    # Values of fake tensors must stay on the CPU, although a device is available.
    fake_tensor.FakeTensorMode.avoid_device_init = True


def _module(device: DeclaredDevice) -> types.ModuleType:
    """Return `torch.neuron`: what torch, Transformers and models ask, with the device unused.

    Streams, events and memory statistics are left out: nothing that is captured needs them.
    """
    properties = types.SimpleNamespace(name=device.product, total_memory=device.memory_bytes)
    module = types.ModuleType("torch.neuron", device.product)
    vars(module).update(
        is_available=lambda: True,
        is_initialized=lambda: False,
        is_bf16_supported=lambda: device.bfloat16,
        device_count=lambda: 1,
        current_device=lambda: 0,
        set_device=lambda device: None,  # noqa: ARG005
        device=lambda device: contextlib.nullcontext(),  # noqa: ARG005
        synchronize=lambda device=None: None,  # noqa: ARG005
        empty_cache=lambda: None,
        get_device_name=lambda device=None: properties.name,  # noqa: ARG005
        get_device_properties=lambda device=None: properties,  # noqa: ARG005
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        get_rng_state=lambda device=None: torch.get_rng_state(),  # noqa: ARG005
        set_rng_state=lambda state, device=None: None,  # noqa: ARG005
        manual_seed_all=lambda seed: None,  # noqa: ARG005
        _is_in_bad_fork=lambda: False,
    )
    return module
