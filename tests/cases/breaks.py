"""Small modules whose graph breaks are known: what each does to Dynamo is pinned in its `case`.

A comment `# break: NAME` marks the line that a break is reported at. Counts, graphs and the
`fullgraph` verdict are those of torch itself: `plain_torch.py` beside this file asks a plain
`torch.compile` in a process that knows nothing of ours, and the tests hold this table to it.
"""

import copy
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

log = logging.getLogger(__name__)
LOCK = threading.Lock()


@dataclass(frozen=True)
class Known:
    """One break. Unless they are given, the mark of its line and the function are the model's."""

    code: str
    mark: str = ""
    function: str = ""
    occurrences: int = 1


@dataclass(frozen=True, kw_only=True)
class Case:
    """`graphs` counts those that reach the backend; `fullgraph` is the verdict of torch.

    `untraced` breaks (of those in `breaks`) are not in torch's structured trace, though its
    counters prove them; `restarted` reports in the trace speak of a break that another report of
    the same compile speaks of. `needs_real`: fake tensors give no answer.
    `later` are the breaks of a second call.
    """

    build: Callable[[], nn.Module]
    name: str
    graphs: int
    breaks: tuple[Known, ...]
    later: tuple[Known, ...]
    fullgraph: bool
    refusal: str | None
    untraced: int = 0
    restarted: int = 0
    needs_real: bool = False


CASES: list[Case] = []

Forward = Callable[..., Tensor | None]


def case(
    graphs: int,
    *breaks: str | Known,
    later: str | None = None,
    fullgraph: bool | None = None,
    refusal: str | None = None,
    **figures: Any,
) -> Callable[[Any], Any]:
    """Add a case for a class, or for a function that is the `forward` of one.

    A break is its code where all else is the model's. Unless said otherwise, torch rejects a model
    with breaks for the first of them.
    """

    def add(model: Any) -> Any:
        is_class = isinstance(model, type)
        name, function = model.__name__, "forward" if is_class else model.__name__

        def known(one: str | Known) -> Known:
            one = Known(one) if isinstance(one, str) else one
            return replace(one, mark=one.mark or name, function=one.function or function)

        accepted = not breaks if fullgraph is None else fullgraph
        met = tuple(map(known, breaks))
        CASES.append(
            Case(
                build=model if is_class else module_of(model),
                name=name,
                graphs=graphs,
                breaks=met,
                later=(known(later),) if later else (),
                fullgraph=accepted,
                refusal=None if accepted else refusal or met[0].code,
                **figures,
            )
        )
        return model

    return add


def line_of(mark: str) -> int:
    """The line of this file that bears `# break: MARK`."""
    lines = Path(__file__).read_text().splitlines()
    (line,) = [at for at, text in enumerate(lines, 1) if text.endswith(f"# break: {mark}")]
    return line


def module_of(forward: Forward) -> Callable[[], nn.Module]:
    """A class whose `forward` is the function itself, so that no call stands in between."""
    return type(forward.__name__, (nn.Module,), {"forward": forward})


@case(1)
def whole(self: nn.Module, x: Tensor) -> Tensor:
    return torch.relu(x + 1) * 2


@case(0)
def no_operations(self: nn.Module, x: Tensor) -> Tensor:
    return x


@case(0, "GB0099")  # break: left_alone
@torch.compiler.disable
def left_alone(self: nn.Module, x: Tensor) -> Tensor:
    return x + 1


@case(2, "GB0124", fullgraph=True)
def item(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    scale = y.sum().item()  # break: item
    return x * scale


@case(2, "GB0124", refusal="data_dependent_guard")
def item_in_branch(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    if y.sum().item() > 0:  # break: item_in_branch
        return y * 2
    return y * 3


@case(2, "GB0036", fullgraph=True)
def dynamic_shape(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y[y > 0] * 2  # break: dynamic_shape


@case(2, "GB0170")
def branch(self: nn.Module, x: Tensor) -> Tensor:
    y = x * 2
    if y.sum() > 0:  # break: branch
        return y + 1
    return y - 1


@case(2, "GB0291")
def logged(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    log.info("seen")  # break: logged
    return y * 2


@case(0, "GB0025")
def loop(self: nn.Module, x: Tensor) -> Tensor:
    for _ in range(3):
        x = x + 1
        torch._dynamo.graph_break()  # break: loop
    return x


@case(0, "GB0142")
def unsupported_context(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    with LOCK:  # break: unsupported_context
        y = y * 2
    return y + 1


@case(2, "GB8977")
def class_definition(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1

    class Local:  # break: class_definition
        factor = 2

    return y * Local.factor


# In `raising` and its callee: the caller meets a break in a call, and so does the callee's frame.
@case(2, Known("GB0025", function="attempt", occurrences=2))
def raising(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    attempt(y, 2.0)
    return y * 2


def attempt(x: Tensor, number: float) -> bool:
    try:
        return bool(number.shape)  # type: ignore[attr-defined]
    except AttributeError:
        torch._dynamo.graph_break()  # break: raising
        return False


@case(2, "GB4198", needs_real=True)
def deepcopy(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    z = copy.deepcopy(y)  # break: deepcopy
    return z * 2


def parts(x: Tensor) -> Iterator[Tensor]:
    yield x * 2
    torch._dynamo.graph_break()  # break: generator
    yield x * 3


@case(0, Known("GB0025", function="parts"))
def generator(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    for part in parts(y):
        y = y + part
    return y


# The cut cannot be made (a generator is under way): a second report, and the frame is given up.
@case(0, "GB0124", fullgraph=True, restarted=1)
def item_in_generator(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * sum(float(row) for row in y.sum(1))  # break: item_in_generator


def unresumed(x: Tensor) -> Iterator[Tensor]:  # break: eager_generator
    yield x * 2


# The frame of a generator that eager code runs fails before it has a compile id.
@case(
    0, Known("GB0025", mark="before_generator"), Known("GB0003", function="unresumed"), untraced=1
)
def eager_generator(self: nn.Module, x: Tensor) -> Tensor:
    for _ in range(1):
        torch._dynamo.graph_break()  # break: before_generator
    for part in unresumed(x):
        x = x + part
    return x


def inner(x: Tensor) -> Tensor:
    y = x + 1
    torch._dynamo.graph_break()  # break: nested
    return y * 2


def middle(x: Tensor) -> Tensor:
    return inner(x - 1) + 1


@case(6, Known("GB0025", function="inner", occurrences=3))
def nested(self: nn.Module, x: Tensor) -> Tensor:
    return middle(x * 3) * 2


@case(3, Known("GB0124", occurrences=2), fullgraph=True)
def two_on_one_line(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return x * y.sum().item() * y.mean().item()  # break: two_on_one_line


@case(1, "GB0025")
def nothing_after(self: nn.Module, x: Tensor) -> None:
    x.add_(1)
    torch._dynamo.graph_break()  # break: nothing_after


@case(2, "GB0025")
def explicit(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    torch._dynamo.graph_break()  # break: explicit
    return y * 2


@torch.compiler.disable
def disabled(x: Tensor) -> Tensor:
    return x * 5


@case(2, "GB0098")
def calls_disabled(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    z = disabled(y)  # break: calls_disabled
    return z + 1


@case(
    4,
    Known("GB0059", mark="three_print"),
    Known("GB0025", mark="three_explicit"),
    Known("GB0170", mark="three_branch"),
)
def three_kinds(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    print("seen")  # break: three_print
    y = y * 2
    torch._dynamo.graph_break()  # break: three_explicit
    if y.sum() > 0:  # break: three_branch
        y = y + 1
    return y * 3


def scaled(x: Tensor, name: str) -> Tensor:  # break: limit
    return x * ord(name)


# The limit is met before the frame is traced: counters and an exception, no structured trace.
@case(
    8,
    Known("GB0025", mark="before_limit"),
    Known("GB0039", mark="limit", function="scaled"),
    untraced=1,
)
def recompile_limit(self: nn.Module, x: Tensor) -> Tensor:
    for name in "abcdefghij":
        torch._dynamo.graph_break()  # break: before_limit
        x = scaled(x, name)
    return x


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        torch._dynamo.graph_break()  # break: layer
        return torch.relu(y)


@case(2, Known("GB0025", mark="layer", occurrences=2))
class SkippedStack(nn.Module):
    """The loop over the layers cannot be resumed in: the frame is given up, the layers are not."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


# What happens at a first call only: each of these is gone, or is other, for who compiles later.
STATE: dict[str, bool] = {}


@case(2, "GB0007")
def warns_once(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    if "warned" not in STATE:
        STATE["warned"] = True
        warnings.warn("seen", stacklevel=1)  # break: warns_once
    return y * 2


@case(2, "GB0124", fullgraph=True)
class FillsCache(nn.Module):
    """As detectors compute their anchors: from values, once."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: float | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        if self.scale is None:
            self.scale = y.sum().item()  # break: FillsCache
        return y * self.scale


@case(1, later="GB0025")
class BreaksLater(nn.Module):
    """Only its second call breaks, whose frame is compiled again."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = x + 1
        if self.calls == 2:
            torch._dynamo.graph_break()  # break: BreaksLater
        return y * 2


@case(3, Known("GB0170", mark="before_change"), Known("GB0025", mark="changed_input"))
def changes_input(self: nn.Module, x: Tensor) -> Tensor:
    if x.sum() == 12:  # break: before_change
        x.add_(1)
        torch._dynamo.graph_break()  # break: changed_input
    return x * 2


@case(1, needs_real=True)
class LazyLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.LazyLinear(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


@case(
    3,
    Known("GB8985", mark="leaks"),
    Known("GB0123", mark="backward"),
    refusal="GB0123",
    restarted=1,
)
class BackwardInside(nn.Module):
    """The frame is traced again after the second line, and is then cut at the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            y = (x * 2).requires_grad_()  # break: leaks
            self.linear(y).square().sum().backward()  # break: backward
        return y * 2
