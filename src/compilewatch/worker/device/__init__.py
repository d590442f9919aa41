"""A device that torch believes to be present, so that fake tensors can be on it.

Everything here changes this process only, and relies on internals of torch that are checked first:
where they differ, nothing is changed and `DeviceUnavailableError` says what is missing.
"""

import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.fx.experimental import proxy_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from compilewatch.records import DeclaredDevice
from compilewatch.worker.example_inputs import files
from compilewatch.worker.model.construct import to_fake
from compilewatch.worker.model.fake_mode import InputAwareFakeMode, on_cpu
from compilewatch.worker.subject import Subject

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
    _compute_constants_on_cpu()
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


class _OnCpu(TorchDispatchMode):  # type: ignore[misc]
    """Computes every operator on the CPU."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        moved_args, moved_kwargs = on_cpu(args, kwargs or {})
        return func(*moved_args, **moved_kwargs)


def _compute_constants_on_cpu() -> None:
    """Let tracers compute constants on the CPU, since the declared device does not exist.

    `make_fx`, and so `torch.export`, computes operators on constants outside of the fake mode, to
    know their values (`proxy_call` of torch/fx/experimental/proxy_tensor.py, torch 2.13 to 2.15).
    Raises DeviceUnavailableError for another torch.
    """
    own = getattr(proxy_tensor, "unset_fake_temporarily", None)
    if own is None:
        raise DeviceUnavailableError("proxy_tensor.unset_fake_temporarily is missing in this torch")

    @contextmanager
    def without_fake_and_device() -> Iterator[Any]:
        with own() as mode, _OnCpu():
            yield mode

    proxy_tensor.unset_fake_temporarily = without_fake_and_device


def on_declared_device(subject: Subject) -> Subject:
    """Replace the real tensors of a subject by fake ones on the declared device of its request."""
    mode = InputAwareFakeMode(torch_device(subject.request.device))
    made = replace(subject, inputs=files.to_fake(subject.inputs, mode), fake_mode=mode)
    return _moved(made, lambda module: to_fake(module, mode))


def on_device(subject: Subject, device: torch.device, *, inputs_only: bool = False) -> Subject:
    """Move a subject with real tensors to a device of this machine."""

    def moved(value: Any) -> Any:
        return files.converted(value, lambda tensor: tensor.to(device), device)

    here = subject.inputs
    inputs = replace(
        here,
        args=moved(here.args),
        kwargs=moved(here.kwargs),
        generation=moved(here.generation),
    )
    subject = replace(subject, inputs=inputs)
    return subject if inputs_only else _moved(subject, lambda module: module.to(device))


def _moved(subject: Subject, move: Callable[[nn.Module], nn.Module]) -> Subject:
    rebuilt = subject.rebuilt
    return replace(
        subject,
        module=move(subject.module),
        rebuilt=None if rebuilt is None else lambda: move(rebuilt()),
    )
