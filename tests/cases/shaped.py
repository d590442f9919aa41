"""Small models that Dynamo compiles again, each for one known cause.

A comment `# cause: NAME` marks the line that needs what a later call does not have. Calls and
guards are those of torch itself: `plain_shaped.py` beside this file asks a plain `torch.compile` in
a process that knows nothing of ours, and the tests hold the results to it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Cause:
    """Of one recompilation: the call that causes it, the kind, and what it is about.

    `marked` is whether the marked line needs it, or torch alone.
    """

    call: int
    kind: str
    subject: str
    marked: bool = False


@dataclass(frozen=True, kw_only=True)
class Shaped:
    """`as_called` and `dynamic` are the causes with `dynamic=None` and `True`.

    `calls` are the arguments of each call: a tuple of sizes is a tensor, all else itself.
    `limit`: the frame reaches the limit of recompilations. `needs_real`: it reads values.
    """

    build: Callable[[], nn.Module]
    name: str
    calls: tuple[tuple[Any, ...], ...]
    as_called: tuple[Cause, ...]
    dynamic: tuple[Cause, ...]
    limit: bool = False
    needs_real: bool = False

    def arguments(self, call: int) -> tuple[Any, ...]:
        """The arguments of a call, from 1; its number is in all elements of its tensors."""

        def value(argument: Any) -> Any:
            if isinstance(argument, torch.dtype):
                return torch.ones(4, 8, dtype=argument)
            is_tensor = isinstance(argument, tuple)
            return torch.full(argument, float(call)) if is_tensor else argument

        return tuple(map(value, self.calls[call - 1]))


SHAPED: list[Shaped] = []

STATIC = Cause(2, "first_static", "x.0")
"""What each model meets whose first dimension differs in the second call."""


def on_line(kind: str, subject: str, *calls: int) -> tuple[Cause, ...]:
    """What the marked line causes in each of these calls."""
    return tuple(Cause(call, kind, subject, marked=True) for call in calls)


def shaped(
    calls: tuple[Any, ...],
    *,
    as_called: tuple[Cause, ...],
    dynamic: tuple[Cause, ...] = (),
    **facts: bool,
) -> Callable[[Any], Any]:
    """Add a case for a class, or for a function that is the `forward` of one.

    A call with one size is that of a tensor of so many rows of eight.
    """

    def add(model: Any) -> Any:
        is_class = isinstance(model, type)
        name = model.__name__
        build = model if is_class else type(name, (nn.Module,), {"forward": model})
        arguments = tuple(((call, 8),) if isinstance(call, int) else call for call in calls)
        SHAPED.append(
            Shaped(
                build=build,
                name=name,
                calls=arguments,
                as_called=as_called,
                dynamic=dynamic,
                **facts,
            )
        )
        return model

    return add


def marked_line(name: str) -> int:
    """The line of this file that bears `# cause: NAME`."""
    lines = Path(__file__).read_text().splitlines()
    (line,) = [at for at, text in enumerate(lines, 1) if text.endswith(f"# cause: {name}")]
    return line


@shaped((4, 5, 6, 7), as_called=(STATIC,))
def sound(self: nn.Module, x: Tensor) -> Tensor:
    return x.softmax(-1) / x.shape[0]


@shaped(
    (4, 5, 1, 12),
    as_called=(STATIC, Cause(3, "size_0_or_1", "x.0"), *on_line("branch", "x.0", 4)),
    dynamic=(Cause(3, "size_0_or_1", "x.0"), *on_line("branch", "x.0", 4)),
)
def branch(self: nn.Module, x: Tensor) -> Tensor:
    if x.shape[0] > 8:  # cause: branch
        return x * 2
    return x + 1


@shaped(
    (4, 6, 7, 8),
    as_called=(STATIC, *on_line("modulo", "x.0", 3)),
    dynamic=on_line("modulo", "x.0", 3),
)
def modulo(self: nn.Module, x: Tensor) -> Tensor:
    odd = x.shape[0] % 2
    return nn.functional.pad(x, (0, 0, 0, 1)) if odd else x + 1  # cause: modulo


@shaped(
    (4, 5, 6),
    as_called=(STATIC, *on_line("constant", "x.0", 3)),
    dynamic=on_line("constant", "x.0", 2, 3),
)
class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = {n: n / 2 for n in range(64)}

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scales[x.shape[0]]  # cause: Constant


@shaped(
    (3, 4, 7, 12),
    as_called=(STATIC, *on_line("branch", "x.0", 3, 4)),
    dynamic=on_line("branch", "x.0", 3, 4),
)
def list_of_sizes(self: nn.Module, x: Tensor) -> Tensor:
    size = next(size for size in (4, 8, 16) if size >= x.shape[0])  # cause: list_of_sizes
    return nn.functional.pad(x, (0, 0, 0, size - x.shape[0]))


@shaped(
    (4, 5, 6),
    as_called=(STATIC, *on_line("constant", "x.0", 3)),
    dynamic=on_line("constant", "x.0", 2, 3),
)
def size_as_float(self: nn.Module, x: Tensor) -> Tensor:
    return nn.functional.layer_norm(x, (8,), eps=1 / x.shape[0])  # cause: size_as_float


@shaped(
    (4, 5, 6),
    as_called=(STATIC, *on_line("constant", "x.0", 3)),
    dynamic=on_line("constant", "x.0", 2, 3),
)
class SizeInACache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        if rows not in self.cache:  # cause: SizeInACache
            self.cache[rows] = torch.arange(rows)
        return x + self.cache[rows][:, None]


@shaped(
    (4, 5, 20),
    as_called=(STATIC, *on_line("branch", "x.0", 3)),
    dynamic=on_line("branch", "x.0", 3),
)
def dtype_by_size(self: nn.Module, x: Tensor) -> Tensor:
    dtype = torch.bfloat16 if x.shape[0] > 16 else torch.float32  # cause: dtype_by_size
    return x.to(dtype)


@shaped(
    (4, 5, 1),
    as_called=(STATIC, Cause(3, "size_0_or_1", "x.0")),
    dynamic=(Cause(3, "size_0_or_1", "x.0"),),
)
def batch_1_squeezed(self: nn.Module, x: Tensor) -> Tensor:
    return x.squeeze(0) + 1


@shaped(
    (4, 4, 4),
    as_called=on_line("value", "", 2),
    needs_real=True,
)
def value_of_a_tensor(self: nn.Module, x: Tensor) -> Tensor:
    rows = x.max().long().item()  # cause: value_of_a_tensor
    return x * rows


@shaped(
    (4, 4, 4, 4),
    as_called=on_line("attribute", "self.step", 2, 3, 4),
    dynamic=on_line("attribute", "self.step", 2, 3, 4),
)
class AttributeCounter(nn.Module):
    step = 0

    def forward(self, x: Tensor) -> Tensor:
        self.step += 1  # cause: AttributeCounter
        return x * self.step


@shaped(
    (4,) * 10,
    as_called=on_line("attribute", "self.step", *range(2, 9)),
    dynamic=on_line("attribute", "self.step", *range(2, 9)),
    limit=True,
)
class Limit(nn.Module):
    step = 0

    def forward(self, x: Tensor) -> Tensor:
        self.step += 1  # cause: Limit
        return x * math.sqrt(self.step)


@shaped(
    (((4, 8), 2), ((4, 8), 2.5), ((4, 8), None), ((4, 8), "a")),
    as_called=on_line("argument", "scale", 2, 3, 4),
    dynamic=on_line("argument", "scale", 2, 3, 4),
)
def type_of_argument(self: nn.Module, x: Tensor, scale: Any) -> Tensor:
    if isinstance(scale, int | float):  # cause: type_of_argument
        return x * scale
    return x + 1


@shaped((((4, 8), 2), ((4, 8), 3), ((4, 8), 4)), as_called=on_line("argument", "times", 2))
def number(self: nn.Module, x: Tensor, times: int) -> Tensor:
    return x * times  # cause: number


@shaped(
    (((4, 8),), ((4, 8, 2),), (torch.float64,)),
    as_called=(Cause(2, "argument", "x"), Cause(3, "argument", "x")),
    dynamic=(Cause(2, "argument", "x"), Cause(3, "argument", "x")),
)
def rank_and_dtype(self: nn.Module, x: Tensor) -> Tensor:
    return x.relu()


@shaped(
    (((4, 8), (4, 8)), ((5, 8), (5, 8)), ((6, 8), (7, 8))),
    as_called=(STATIC,),
    dynamic=(Cause(3, "equal_sizes", "y.0"),),
)
def equal_sizes(self: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x, y])


@shaped(
    (((4, 8), (4, 8)), ((5, 8), (5, 8)), ((6, 8), (1, 8))),
    as_called=(STATIC, Cause(3, "size_0_or_1", "y.0")),
    dynamic=(Cause(3, "size_0_or_1", "y.0"),),
)
def broadcast(self: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return x + y


@shaped((4, 8, 12), as_called=(STATIC,), dynamic=on_line("constant", "x.0", 2))
def view(self: nn.Module, x: Tensor) -> Tensor:
    return x.view(4, -1, 8) + 1  # cause: view


@shaped(
    (4, 5, 8, 16),
    as_called=(STATIC, *on_line("branch", "x.0", 3)),
    dynamic=on_line("branch", "x.0", 3),
)
class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.ones(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] == 8:  # cause: Table
            return x + self.positions
        return x * 2


class Counter(nn.Module):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1  # cause: NestedCounter
        return x * self.calls


@shaped(
    (4, 4, 4),
    as_called=on_line("attribute", "self.layers.0.calls", 2, 3),
    dynamic=on_line("attribute", "self.layers.0.calls", 2, 3),
)
class NestedCounter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Counter(), nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@shaped(
    (4, 5, 6, 9),
    as_called=(STATIC, STATIC, *on_line("branch", "x.0", 4)),
    dynamic=on_line("branch", "x.0", 4),
)
def after_a_break(self: nn.Module, x: Tensor) -> Tensor:
    x = x + 1
    torch._dynamo.graph_break()
    if x.shape[0] > 8:  # cause: after_a_break
        return x * 2
    return x - 1


def broken(x: Tensor, size: int) -> Tensor:
    torch._dynamo.graph_break()
    return x * size  # cause: InALoop


@shaped((4,), as_called=on_line("value", "size", 1))
class InALoop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for size in range(2, 5):
            x = broken(x, size)
        return x
