"""The device `neuron` as torch sees it, registered as a backend that is written in Python.

TorchNeuron registers the same name (a PrivateUse1 device). The registration is torch's own and
experimental (`torch.utils.backend_registration`, tried with torch 2.13 to 2.15).
"""

import warnings

import torch
from torch.utils import backend_registration

from compilewatch.worker.device import DeviceUnavailableError


class _NeuronModule:
    """`torch.neuron`, as far as torch and models ask a device without using it."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def is_bf16_supported(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def _is_in_bad_fork(self) -> bool:
        return False


def install() -> None:
    """Register the device. Raises DeviceUnavailableError if this torch cannot."""
    setup = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
    if setup is None:
        raise DeviceUnavailableError(
            f"torch {torch.__version__} cannot declare a Neuron device; torch 2.13 to 2.15 can"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        setup(rename="neuron", backend_module=_NeuronModule())
