"""Runs a model's constructor without its weights, or with real but deterministic weights.

In the fake tier, the constructor runs on the meta device, like Transformers' own `from_pretrained`,
and every tensor is then replaced by a fake one. A constructor that cannot run on meta
(it reads a value of a tensor that it made there) runs on real CPU memory, and its tensors are
replaced too.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from compilewatch.worker.model import replaced
from compilewatch.worker.model.fake_mode import CPU, InputAwareFakeMode

SEED = 0
"""Seed of every real initialisation: the same request has the same weights."""

BLOCK_ELEMENTS = 1_000_003
"""Number of random values that are drawn for a large tensor and repeated in it, because drawing
takes most of the time of a real construction. A prime, so that no two matrix rows are equal."""

Construct = Callable[[], nn.Module]


def construct_fake(construct: Construct, fake_mode: FakeTensorMode) -> nn.Module:
    """Run a constructor without allocating weights; all tensors become fake (see `to_fake`)."""
    try:
        module = construct_meta(construct)
    except (RuntimeError, NotImplementedError):
        # The constructor read a value (`.item()` on meta) or mixed meta and CPU tensors. Only the
        # second attempt distinguishes such a model from one that cannot be built at all.
        with _without_initialisation(), FilledMemory():
            module = construct()
    if hasattr(module, "tie_weights"):
        module.tie_weights()
    return to_fake(module, fake_mode)


def construct_meta(construct: Construct) -> nn.Module:
    """Run a constructor on the meta device, which only has shapes."""
    # Constructors read drop-path rates from `linspace` by `.item()`.
    on_cpu = partial(torch.linspace, device="cpu")
    with _without_initialisation(), torch.device("meta"), replaced(torch, "linspace", on_cpu):
        return construct()


def count_parameters(construct: Construct) -> int | None:
    """Count a constructor's parameters, tied ones once; None if it fails on meta."""
    try:
        module = construct_meta(construct)
    except Exception:  # noqa: BLE001  a constructor may object to a configuration in any way
        return None
    if hasattr(module, "tie_weights"):
        module.tie_weights()
    return sum(int(p.numel()) for p in module.parameters())


def construct_real(construct: Construct) -> nn.Module:
    """Run a seeded constructor on CPU memory and leave no memory uninitialised."""
    torch.manual_seed(SEED)
    with FilledMemory():
        return construct()


def to_fake(module: nn.Module, fake_mode: FakeTensorMode) -> nn.Module:
    """Replace every tensor of a module by a fake one, in place.

    Parameters and buffers are on the device of the mode. As after `module.to(device)`, tensors in
    plain attributes (also in lists, tuples and dicts) are on the CPU, unless they are parameters.
    A shared tensor stays shared, so that tied weights stay tied. Integers that the constructor
    computed on real memory keep their values, because they are sizes and positions.
    """
    home = getattr(fake_mode, "device", CPU)
    memo: dict[tuple[int, torch.device], torch.Tensor] = {}
    keep_alive: list[torch.Tensor] = []  # ids stay unique while their tensors live

    def fake(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        device = home if isinstance(tensor, nn.Parameter) else device
        key = (id(tensor), device)
        if key not in memo:
            keep_alive.append(tensor)
            memo[key] = _fake_of(tensor, fake_mode, device)
        return memo[key]

    for submodule in module.modules():
        for tensors in (submodule._parameters, submodule._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = fake(tensor, home)
        for name, value in submodule.__dict__.items():
            if name not in ("_parameters", "_buffers", "_modules"):
                submodule.__dict__[name] = _map_tensors(value, lambda tensor: fake(tensor, CPU))
    return module


def _fake_of(tensor: torch.Tensor, fake_mode: FakeTensorMode, device: torch.device) -> torch.Tensor:
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    if whole and tensor.device.type == "cpu" and isinstance(fake_mode, InputAwareFakeMode):
        return fake_mode.known(tensor, device)
    with fake_mode:
        fake = torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device
        )
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(fake, requires_grad=tensor.requires_grad)
    return fake


def _map_tensors(value: Any, fake: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return fake(value)
    if type(value) in (list, tuple) and any(isinstance(v, torch.Tensor) for v in value):
        return type(value)(_map_tensors(v, fake) for v in value)
    if type(value) is dict and any(isinstance(v, torch.Tensor) for v in value.values()):
        return {k: _map_tensors(v, fake) for k, v in value.items()}
    return value


def _without_initialisation() -> AbstractContextManager[None]:
    """Skip the initialisation of weights, whose values are not read."""
    try:
        from transformers.initialization import no_init_weights
    except ImportError:  # before 5.0
        from transformers.modeling_utils import no_init_weights

    skipping: AbstractContextManager[None] = no_init_weights()
    return skipping


class FilledMemory(TorchDispatchMode):  # type: ignore[misc]
    """Fills memory deterministically and fast.

    `empty` returns zeros: a parameter without an initialiser must not contain garbage, because
    data-dependent branches would then take a random path. Random values of large tensors are blocks
    of `BLOCK_ELEMENTS` values that repeat.
    """

    _EMPTY = frozenset(
        {
            torch.ops.aten.empty.memory_format,
            torch.ops.aten.empty_like.default,
            torch.ops.aten.empty_strided.default,
            torch.ops.aten.new_empty.default,
            torch.ops.aten.new_empty_strided.default,
        }
    )
    _RANDOM = frozenset({torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default})

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        is_large = func in self._RANDOM and args[0].numel() > BLOCK_ELEMENTS
        if is_large and args[0].is_contiguous() and args[0].is_cpu:
            block = func(args[0].new_empty(BLOCK_ELEMENTS), *args[1:], **kwargs)
            for part in args[0].view(-1).split(BLOCK_ELEMENTS):
                part.copy_(block[: part.numel()])
            return args[0]
        result = func(*args, **kwargs)
        return result.zero_() if func in self._EMPTY else result


_TENSOR_TABLES = ("_parameters", "_buffers", "_modules")


@contextmanager
def preserved(module: nn.Module) -> Iterator[None]:
    """On exit, restore the module's attributes, hooks, buffers, their values, and gradients.

    Models count tokens, cache masks and keep running statistics; a tracer that runs a model leaves
    its own tensors there. The objects stay the same, so that code compiled for them stays valid.
    Changes inside another attribute (an element of a list) are not undone.
    """
    attributes = [(submodule, _attributes(submodule)) for submodule in module.modules()]
    tables = [
        (table, dict(table))
        for submodule in module.modules()
        for name, table in vars(submodule).items()
        if name in ("_parameters", "_buffers") or ("_hooks" in name and isinstance(table, dict))
    ]
    buffers = [buffer for buffer in module.buffers() if not is_lazy(buffer)]
    values = [(buffer, buffer.detach().clone()) for buffer in buffers]
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    try:
        yield
    finally:
        for submodule, kept in attributes:
            for name in _attributes(submodule).keys() - kept.keys():
                del submodule.__dict__[name]
            submodule.__dict__.update(kept)
        for table, entries in tables:
            table.clear()
            table.update(entries)
        with torch.no_grad():
            for buffer, value in values:
                buffer.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in _TENSOR_TABLES}
