"""Imports and first calls that the server executes once, instead of every child."""

import contextlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import Any

from compilewatch.contract.libraries import LIBRARIES
from compilewatch.contract.targets import entry
from compilewatch.records import DeclaredDevice

MODULES = (
    "torch._dynamo",
    "transformers.models.auto",
    "transformers.generation.utils",
    "transformers.image_processing_utils",
    "transformers.modeling_layers",
    "transformers.tokenization_utils_tokenizers",
    "transformers.video_processing_utils",
    "compilewatch.worker.process.child",
    "compilewatch.worker.phases",
    "compilewatch.worker.model.shrink",
    "compilewatch.worker.targets.dynamo.target",
)
"""Imported in this order, with what they import. Modules that this environment lacks are left out:
a child that needs one reports that."""

LIBRARY_MODULES = tuple(row.warm_up for row in LIBRARIES.values() if row.warm_up)
"""The other libraries of models, up to five seconds of a child."""

MODULES_OF_EACH = ("torch._dynamo", *(m for m in MODULES if m.startswith("compilewatch.")))


def warm_up(
    targets: Iterable[str] = (), *, single: bool = False, device: DeclaredDevice | None = None
) -> None:
    """Import torch and transformers, compile a tiny model, and reset the compiler's state.

    `targets` are the targets of the requests to come. Only torch itself must work; any other
    failure is written to stderr and makes children slower, but does not change results. For a
    `single` request, only the modules that every request needs are imported: the others are worth
    their time only if many children share them. A `device` is declared first; a child says why if
    that is not possible.
    """
    targets = tuple(targets)
    import_modules(targets, MODULES_OF_EACH if single else None)
    # At its first backward, a process counts the devices for which autograd has threads.
    backward = device is None and not any(entry(target).device_of_child for target in targets)
    try:
        import torch

        from compilewatch.worker.process import shortcuts

        shortcuts.take()
        if device is not None:
            _declare(device)
        if backward:
            # Before the first FakeTensorMode, so that autograd starts no threads: it starts one for
            # each device that it sees at its first backward. A CUDA build without a device sees
            # none, until FakeTensorMode installs a guard for CUDA that reports eight
            # (`torch._C._ensureCUDADeviceGuardSet`, torch 2.13 and 2.15).
            torch.ones((), requires_grad=True).backward()
        if not single:
            compile_something(device, backward=backward)
    except Exception:  # noqa: BLE001  (a broken compiler is a finding of the children)
        sys.stderr.write("warm-up: the first compile failed\n")
        traceback.print_exc()


def import_modules(targets: Iterable[str] = (), modules: Sequence[str] | None = None) -> None:
    """Import the modules that requests on `targets` need. Raises only if torch itself fails.

    If `modules` is given, they are imported instead of the modules that many requests share.
    """
    import torch

    torch.set_num_threads(1)
    _keep_single_threaded()
    shared = (*MODULES, *LIBRARY_MODULES, *(m for t in targets for m in entry(t).warm_up))
    for name in shared if modules is None else modules:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            continue
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001  (foreign packages: whatever they raise at import)
            sys.stderr.write(f"warm-up: {name} cannot be imported\n")
            traceback.print_exc()


def _keep_single_threaded() -> None:
    """Prevent the monitor thread that tqdm starts with its first progress bar (AOTAutograd's)."""
    with contextlib.suppress(ImportError):
        from tqdm import tqdm  # type: ignore[import-untyped]

        tqdm.monitor_interval = 0


def _declare(device: DeclaredDevice) -> None:
    from compilewatch.worker.device import DeviceUnavailableError, declare

    with contextlib.suppress(DeviceUnavailableError):
        declare(device)
        if device.kind == "cuda":
            _load_cudnn()


def _load_cudnn() -> None:
    """Load cuDNN, whose version torch asks for at the first attention on a CUDA device.

    In each child, that takes 30 ms and 50 MiB. Torch objects to another version than its own.
    """
    import torch

    with contextlib.suppress(RuntimeError):
        torch.backends.cudnn.version()


def one_layer() -> Any:
    """Return the model with which an environment is tried; `one_layer_inputs` are its inputs."""
    from torch import nn

    return nn.Linear(4, 4)


def one_layer_inputs() -> Any:
    import torch

    return torch.ones(2, 4)


def compile_something(device: DeclaredDevice | None = None, *, backward: bool = True) -> None:
    """Execute the code whose modules, tables and caches are created at first use.

    For a declared device, no `backward` is possible: it would start a thread for each device.
    """
    import torch
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensorMode

    from compilewatch.worker.device import torch_device

    on = torch_device(device)

    def tiny() -> tuple[nn.Module, torch.Tensor]:
        layers = (
            nn.Embedding(8, 8, device=on),
            nn.LayerNorm(8, device=on),
            nn.Linear(8, 8, device=on),
        )
        return nn.Sequential(*layers, nn.GELU()), torch.zeros(2, 4, dtype=torch.long, device=on)

    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        module, tokens = tiny()
        torch.compile(module, backend="eager")(tokens)
        torch._dynamo.explain(module)(tokens)
    torch._dynamo.reset()
    if not backward:
        return
    # Real tensors: AOTAutograd of torch 2.9 rejects fake tensors of another mode than Dynamo's.
    module, tokens = tiny()
    captured = torch.compile(module.train(), backend="aot_eager_default_partitioner")
    captured(tokens).sum().backward()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
