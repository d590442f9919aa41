"""Constants of tracers, which a device that is only declared cannot hold."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.fx.experimental import proxy_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from compilewatch.worker.device import DeviceUnavailableError
from compilewatch.worker.model.fake_mode import on_cpu


class _OnCpu(TorchDispatchMode):  # type: ignore[misc]
    """Computes every operator on the CPU."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        moved_args, moved_kwargs = on_cpu(args, kwargs or {})
        return func(*moved_args, **moved_kwargs)


def compute_on_cpu() -> None:
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
