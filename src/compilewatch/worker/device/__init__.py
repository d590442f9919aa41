"""A device that torch believes to be present, so that fake tensors can be on it.

Everything here changes this process only, and relies on internals of torch that are checked first:
where they differ, nothing is changed and `DeviceUnavailableError` says what is missing.
"""

import importlib
import importlib.util
import re

import torch

from compilewatch.records import DeclaredDevice

DEVICE_NEEDED = re.compile(
    r"Found no NVIDIA driver|CUDA driver|Cannot access accelerator device|from the 'CUDA' backend"
    r"|missing kernel for cuda|with arguments from the 'neuron' backend"
)
"""What torch says where a kernel or a driver of the device is needed, which it is not."""


class DeviceUnavailableError(Exception):
    """This build of torch cannot hold fake tensors of the device; the argument says why."""


_declared: list[DeclaredDevice] = []


def declare(device: DeclaredDevice) -> None:
    """Let this process see one device with these properties, and no other accelerator.

    A process can declare one device; declaring it again does nothing. Raises DeviceUnavailableError
    if this build of torch lacks what is needed, and RuntimeError for a second device.
    """
    if _declared:
        if _declared[0] != device:
            raise RuntimeError(f"this process has declared {_declared[0].name} already")
        return
    if device.kind == "neuron":
        from compilewatch.worker.device import neuron

        neuron.install(device)
    else:
        from compilewatch.worker.device import cuda_functions, cuda_internals

        cuda_internals.install()
        cuda_functions.install(device)
    from compilewatch.worker.device import constants

    constants.compute_on_cpu()
    _declared.append(device)


def is_present(kind: str) -> bool:
    """Whether this machine has a device of this kind, which torch can use.

    Raises ImportError if TorchNeuron cannot be loaded, which a worker's `import torch` leaves out.
    """
    if kind == "neuron" and importlib.util.find_spec("torch_neuronx") is not None:
        importlib.import_module("torch_neuronx")
    module = getattr(torch, kind, None)
    return module is not None and bool(module.is_available())


def torch_device(device: DeclaredDevice | None) -> torch.device:
    """Return the device of a request's tensors."""
    return torch.device("cpu") if device is None else torch.device(device.kind, 0)


def lacking_for_training() -> str | None:
    """Return what is missing to trace a backward on the declared device; None if nothing is."""
    if torch.version.cuda is not None or _declared[0].kind != "cuda":
        return None
    return "training on a CUDA device needs a CUDA build of torch: compilewatch env create cuda"
