"""Small modules whose graph breaks are known: what they do to Dynamo is pinned in `CASES`.

A comment `# break: NAME` marks the line that a break is reported at. Counts, graphs and the
`fullgraph` verdict are those of torch itself: `plain_torch.py` beside this file asks a plain
`torch.compile` in a process that knows nothing of ours, and the tests hold this table to it.
"""

from __future__ import annotations

import copy
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

log = logging.getLogger(__name__)
LOCK = threading.Lock()


def whole(self: nn.Module, x: Tensor) -> Tensor:
    return torch.relu(x + 1) * 2


def no_operations(self: nn.Module, x: Tensor) -> Tensor:
    return x


@torch.compiler.disable  # break: left_alone
def left_alone(self: nn.Module, x: Tensor) -> Tensor:
    return x + 1


def item(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    scale = y.sum().item()  # break: item
    return x * scale


def item_in_branch(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    if y.sum().item() > 0:  # break: item_in_branch
        return y * 2
    return y * 3


def dynamic_shape(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y[y > 0] * 2  # break: dynamic_shape


def branch(self: nn.Module, x: Tensor) -> Tensor:
    y = x * 2
    if y.sum() > 0:  # break: branch
        return y + 1
    return y - 1


def printing(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    print("seen")  # break: printing
    return y * 2


def logged(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    log.info("seen")  # break: logged
    return y * 2


def loop(self: nn.Module, x: Tensor) -> Tensor:
    for _ in range(3):
        x = x + 1
        torch._dynamo.graph_break()  # break: loop
    return x


def unsupported_context(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    with LOCK:  # break: unsupported_context
        y = y * 2
    return y + 1


def class_definition(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1

    class Local:  # break: class_definition
        factor = 2

    return y * Local.factor


def try_except(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    try:
        y = y * 2
        torch._dynamo.graph_break()  # break: try_except
    except ValueError:
        y = y - 1
    return y + 3


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


def deepcopy(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    z = copy.deepcopy(y)  # break: deepcopy
    return z * 2


def parts(x: Tensor) -> Iterator[Tensor]:
    yield x * 2
    torch._dynamo.graph_break()  # break: generator
    yield x * 3


def generator(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    for part in parts(y):
        y = y + part
    return y


def item_in_generator(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return y * sum(float(row) for row in y.sum(1))  # break: item_in_generator


def unresumed(x: Tensor) -> Iterator[Tensor]:  # break: eager_generator
    yield x * 2


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


def nested(self: nn.Module, x: Tensor) -> Tensor:
    return middle(x * 3) * 2


def helper(x: Tensor) -> Tensor:
    y = x + 1
    torch._dynamo.graph_break()  # break: helper
    return y * 2


def called_helper(self: nn.Module, x: Tensor) -> Tensor:
    return helper(x * 3) + 1


def two_on_one_line(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    return x * y.sum().item() * y.mean().item()  # break: two_on_one_line


def nothing_after(self: nn.Module, x: Tensor) -> None:
    x.add_(1)
    torch._dynamo.graph_break()  # break: nothing_after


def explicit(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    torch._dynamo.graph_break()  # break: explicit
    return y * 2


@torch.compiler.disable
def disabled(x: Tensor) -> Tensor:
    return x * 5


def calls_disabled(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    z = disabled(y)  # break: calls_disabled
    return z + 1


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


class Stack(nn.Module):
    """Two layers without a loop: the frame is cut at each, the layers' own frame once."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Layer()
        self.second = Layer()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) + 1) * 2


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


def warns_once(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    if "warned" not in STATE:
        STATE["warned"] = True
        warnings.warn("seen", stacklevel=1)  # break: warns_once
    return y * 2


def prints_once(self: nn.Module, x: Tensor) -> Tensor:
    y = x + 1
    if "printed" not in STATE:
        STATE["printed"] = True
        print("seen")  # break: prints_once
    return y * 2


class FillsCache(nn.Module):
    """As detectors compute their anchors: from values, once."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: float | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        if self.scale is None:
            self.scale = y.sum().item()  # break: fills_cache
        return y * self.scale


class SetsFlag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.started = False

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        if not self.started:
            torch._dynamo.graph_break()  # break: sets_flag
            self.started = True
        return y * 2


class BreaksLater(nn.Module):
    """Only its second call breaks, whose frame is compiled again."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = x + 1
        if self.calls == 2:
            torch._dynamo.graph_break()  # break: breaks_later
        return y * 2


def changes_input(self: nn.Module, x: Tensor) -> Tensor:
    if x.sum() == 12:  # break: before_change
        x.add_(1)
        torch._dynamo.graph_break()  # break: changed_input
    return x * 2


class LazyLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.LazyLinear(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


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


@dataclass(frozen=True)
class Known:
    """One break: the mark of its line, its code, the function it is in, how often it is met."""

    mark: str
    code: str
    function: str
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
    graphs: int
    breaks: tuple[Known, ...] = ()
    fullgraph: bool = False
    refusal: str | None = None
    untraced: int = 0
    restarted: int = 0
    needs_real: bool = False
    later: tuple[Known, ...] = ()

    @property
    def name(self) -> str:
        return self.build.__name__


def line_of(mark: str) -> int:
    """The line of this file that bears `# break: MARK`."""
    lines = Path(__file__).read_text().splitlines()
    (found,) = [at for at, line in enumerate(lines, 1) if line.endswith(f"# break: {mark}")]
    return found


def module_of(forward: Callable[..., Tensor | None]) -> Callable[[], nn.Module]:
    """A class whose `forward` is the function itself, so that no call stands in between."""
    return type(forward.__name__, (nn.Module,), {"forward": forward})


CASES = (
    Case(build=module_of(whole), graphs=1, fullgraph=True),
    Case(
        build=module_of(no_operations),
        graphs=0,
        fullgraph=True,
    ),
    Case(
        build=module_of(left_alone),
        graphs=0,
        breaks=(Known("left_alone", "GB0099", "left_alone"),),
        refusal="GB0099",
    ),
    Case(
        build=module_of(item),
        graphs=2,
        breaks=(Known("item", "GB0124", "item"),),
        fullgraph=True,
    ),
    Case(
        build=module_of(item_in_branch),
        graphs=2,
        breaks=(Known("item_in_branch", "GB0124", "item_in_branch"),),
        refusal="data_dependent_guard",
    ),
    Case(
        build=module_of(dynamic_shape),
        graphs=2,
        breaks=(Known("dynamic_shape", "GB0036", "dynamic_shape"),),
        fullgraph=True,
    ),
    Case(
        build=module_of(branch),
        graphs=2,
        breaks=(Known("branch", "GB0170", "branch"),),
        refusal="GB0170",
    ),
    Case(
        build=module_of(printing),
        graphs=2,
        breaks=(Known("printing", "GB0059", "printing"),),
        refusal="GB0059",
    ),
    Case(
        build=module_of(logged),
        graphs=2,
        breaks=(Known("logged", "GB0291", "logged"),),
        refusal="GB0291",
    ),
    Case(
        build=module_of(loop),
        graphs=0,
        breaks=(Known("loop", "GB0025", "loop"),),
        refusal="GB0025",
    ),
    Case(
        build=module_of(unsupported_context),
        graphs=0,
        breaks=(Known("unsupported_context", "GB0142", "unsupported_context"),),
        refusal="GB0142",
    ),
    Case(
        build=module_of(class_definition),
        graphs=2,
        breaks=(Known("class_definition", "GB8977", "class_definition"),),
        refusal="GB8977",
    ),
    Case(
        build=module_of(try_except),
        graphs=0,
        breaks=(Known("try_except", "GB0025", "try_except"),),
        refusal="GB0025",
    ),
    # In `raising` and its callee: a break in a call is met by the caller and by the callee's frame.
    Case(
        build=module_of(raising),
        graphs=2,
        breaks=(Known("raising", "GB0025", "attempt", 2),),
        refusal="GB0025",
    ),
    Case(
        build=module_of(deepcopy),
        graphs=2,
        breaks=(Known("deepcopy", "GB4198", "deepcopy"),),
        refusal="GB4198",
        needs_real=True,
    ),
    Case(
        build=module_of(generator),
        graphs=0,
        breaks=(Known("generator", "GB0025", "parts"),),
        refusal="GB0025",
    ),
    # The cut cannot be made (a generator is under way): a second report, and the frame is given up.
    Case(
        build=module_of(item_in_generator),
        graphs=0,
        breaks=(Known("item_in_generator", "GB0124", "item_in_generator"),),
        fullgraph=True,
        restarted=1,
    ),
    # The frame of a generator that eager code runs fails before it has a compile id.
    Case(
        build=module_of(eager_generator),
        graphs=0,
        breaks=(
            Known("before_generator", "GB0025", "eager_generator"),
            Known("eager_generator", "GB0003", "unresumed"),
        ),
        refusal="GB0025",
        untraced=1,
    ),
    Case(
        build=module_of(nested),
        graphs=6,
        breaks=(Known("nested", "GB0025", "inner", 3),),
        refusal="GB0025",
    ),
    Case(
        build=module_of(called_helper),
        graphs=4,
        breaks=(Known("helper", "GB0025", "helper", 2),),
        refusal="GB0025",
    ),
    Case(
        build=module_of(two_on_one_line),
        graphs=3,
        breaks=(Known("two_on_one_line", "GB0124", "two_on_one_line", 2),),
        fullgraph=True,
    ),
    Case(
        build=module_of(nothing_after),
        graphs=1,
        breaks=(Known("nothing_after", "GB0025", "nothing_after"),),
        refusal="GB0025",
    ),
    Case(
        build=module_of(explicit),
        graphs=2,
        breaks=(Known("explicit", "GB0025", "explicit"),),
        refusal="GB0025",
    ),
    Case(
        build=module_of(calls_disabled),
        graphs=2,
        breaks=(Known("calls_disabled", "GB0098", "calls_disabled"),),
        refusal="GB0098",
    ),
    Case(
        build=module_of(three_kinds),
        graphs=4,
        breaks=(
            Known("three_print", "GB0059", "three_kinds"),
            Known("three_explicit", "GB0025", "three_kinds"),
            Known("three_branch", "GB0170", "three_kinds"),
        ),
        refusal="GB0059",
    ),
    # The limit is met before the frame is traced: counters and an exception, no structured trace.
    Case(
        build=module_of(recompile_limit),
        graphs=8,
        breaks=(
            Known("before_limit", "GB0025", "recompile_limit"),
            Known("limit", "GB0039", "scaled"),
        ),
        refusal="GB0025",
        untraced=1,
    ),
    Case(
        build=Stack,
        graphs=4,
        breaks=(Known("layer", "GB0025", "forward", 3),),
        refusal="GB0025",
    ),
    Case(
        build=SkippedStack,
        graphs=2,
        breaks=(Known("layer", "GB0025", "forward", 2),),
        refusal="GB0025",
    ),
    Case(
        build=module_of(warns_once),
        graphs=2,
        breaks=(Known("warns_once", "GB0007", "warns_once"),),
        refusal="GB0007",
    ),
    Case(
        build=module_of(prints_once),
        graphs=2,
        breaks=(Known("prints_once", "GB0059", "prints_once"),),
        refusal="GB0059",
    ),
    Case(
        build=FillsCache,
        graphs=2,
        breaks=(Known("fills_cache", "GB0124", "forward"),),
        fullgraph=True,
    ),
    Case(
        build=SetsFlag,
        graphs=2,
        breaks=(Known("sets_flag", "GB0025", "forward"),),
        refusal="GB0025",
    ),
    Case(
        build=BreaksLater,
        graphs=1,
        fullgraph=True,
        later=(Known("breaks_later", "GB0025", "forward"),),
    ),
    Case(
        build=module_of(changes_input),
        graphs=3,
        breaks=(
            Known("before_change", "GB0170", "changes_input"),
            Known("changed_input", "GB0025", "changes_input"),
        ),
        refusal="GB0170",
    ),
    Case(build=LazyLayer, graphs=1, fullgraph=True, needs_real=True),
    Case(
        build=BackwardInside,
        graphs=3,
        breaks=(
            Known("leaks", "GB8985", "forward"),
            Known("backward", "GB0123", "forward"),
        ),
        refusal="GB0123",
        restarted=1,
    ),
)
