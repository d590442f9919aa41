"""The targets of a profile: how the model is called on each, and what its compiler said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch._dynamo

from compilewatch.errors import UsageError
from compilewatch.extras.profiles.infer.messages import Prepare
from compilewatch.records import GraphBreak
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets.dynamo.capture import Capture, capture, unmeasured_guards
from compilewatch.worker.targets.dynamo.target import forward_of
from compilewatch.worker.targets.execution import observed


class CalledModel(Protocol):
    """One model on one target."""

    def first_call(self) -> None:
        """Compile and call."""
        ...

    def call(self) -> Any:
        """One call, finished when it returns."""
        ...

    def observed(self) -> dict[str, Any]:
        """The results of one call by path, for a comparison with eager mode."""
        ...

    def compiled(self, module: Any) -> Any:
        """Return how this target calls a module with other inputs."""
        ...

    def graphs(self) -> int | None: ...

    def breaks(self) -> tuple[GraphBreak, ...] | None: ...

    def ends(self, breaks: tuple[GraphBreak, ...]) -> dict[str, int]:
        """The index of the break at which the code of each compile id ends."""
        ...

    def forget(self) -> None:
        """Drop compiled code, but keep what the compiler cached on disk."""
        ...


class Eager(CalledModel):
    """The model as it is."""

    def __init__(self, subject: Subject, _: Prepare) -> None:
        self.subject = subject

    def first_call(self) -> None:
        self.call()

    def call(self) -> Any:
        with torch.no_grad():
            return self.subject.module(*self.subject.inputs.args, **self.subject.inputs.kwargs)

    def observed(self) -> dict[str, Any]:
        return observed(self.subject, self.subject.module)

    def compiled(self, module: Any) -> Any:
        return module

    def graphs(self) -> int | None:
        return None

    def breaks(self) -> tuple[GraphBreak, ...] | None:
        return None

    def ends(self, breaks: tuple[GraphBreak, ...]) -> dict[str, int]:
        del breaks
        return {}

    def forget(self) -> None:
        pass


class Inductor(Eager):
    """`torch.compile` with Inductor and the shapes of this batch.

    Breaks are recorded as the target `dynamo` records them, so that their names agree.
    """

    def __init__(self, subject: Subject, order: Prepare) -> None:
        super().__init__(subject, order)
        from torch._inductor import config
        from torch._inductor.utils import fresh_cache

        from compilewatch.worker.targets.inductor import prepare_tool_chain

        self.found = Capture()
        self.optimized: Callable[..., Any] = subject.module
        # These hold until the process ends.
        config.compile_threads = 1
        config.fallback_random = True
        prepare_tool_chain()
        self._cache = fresh_cache()
        self._cache.__enter__()

    def first_call(self) -> None:
        def call(optimized: Callable[..., Any]) -> None:
            self.optimized = optimized
            self.call()

        # Inductor marks each graph in a trace; dynamic shapes would be slower code.
        with unmeasured_guards():
            self.found = capture(
                call,
                self.subject.module,
                backend=torch._dynamo.lookup_backend("inductor"),
                dynamic=False,
            )

    def call(self) -> Any:
        with torch.no_grad():
            return self.optimized(*self.subject.inputs.args, **self.subject.inputs.kwargs)

    def observed(self) -> dict[str, Any]:
        return observed(self.subject, self.optimized)

    def compiled(self, module: Any) -> Any:
        return torch.compile(module)

    def graphs(self) -> int | None:
        return self.found.graphs

    def breaks(self) -> tuple[GraphBreak, ...] | None:
        return self.found.log.breaks(forward_of(self.subject.module))

    def ends(self, breaks: tuple[GraphBreak, ...]) -> dict[str, int]:
        ids = list(self.found.log.reports)
        at = self.found.log.ends(ids, breaks, forward_of(self.subject.module))
        ends = {name: index for name, index in zip(ids, at, strict=True) if index >= 0}
        first = next(iter(self.found.frames), None)
        if first in ends and first not in self.found.captured:
            # The model's own frame was given up: its code runs as Python, in no compiled frame.
            ends[""] = ends[first]
        return ends

    def forget(self) -> None:
        from torch._inductor.utils import clear_caches

        torch._dynamo.reset()
        clear_caches()


class Xla(Eager):
    """PyTorch/XLA on its CPU device: the graph is traced in each call, and run once it is whole."""

    def __init__(self, subject: Subject, order: Prepare) -> None:
        super().__init__(subject, order)
        from compilewatch.worker.targets.xla import device

        self._device = device
        self.placed: Subject | None = None

    def first_call(self) -> None:
        self.placed = self._device.on_device(self.subject)
        self.call()

    def call(self) -> Any:
        import torch_xla

        assert self.placed is not None
        with torch.no_grad():
            output = self.placed.module(*self.placed.inputs.args, **self.placed.inputs.kwargs)
        torch_xla.sync(wait=True)
        return output

    def observed(self) -> dict[str, Any]:
        assert self.placed is not None
        found = observed(self.placed, self.placed.module)
        return {
            name: value.cpu() if isinstance(value, torch.Tensor) else value
            for name, value in found.items()
        }

    def compiled(self, module: Any) -> Any:
        del module
        raise UsageError("only eager and inductor are called with inputs of another shape")

    def graphs(self) -> int | None:
        return int(self._device.compiled_graphs())


CALLABLES: dict[str, Callable[[Subject, Prepare], CalledModel]] = {
    "eager": Eager,
    "inductor": Inductor,
    "xla": Xla,
}
