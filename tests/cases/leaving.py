"""Small models that leave something behind: a call changes what the case watches.

As a program, it prints one JSON object: for each case (those that are named, or all) what
`compilewatch.check` says and left where it runs in a copy of the process and where it runs in the
process itself (`here`), whether a plain call changes what is watched, and what plain PyTorch says.
Each step starts in a fork of a process that has called no model.
"""

import itertools
import json
import logging
import os
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest import mock

import leaving_helpers as helpers
import numpy as np
import torch
import torch._inductor.config
from plain_torch import Reports, apart
from torch import Tensor, nn
from torch._dynamo.utils import counters

import compilewatch
from compilewatch.worker.caller import evaluation

LOG = logging.getLogger("leaving")
FLAGS = {"seen": 0}
HISTORY: list[int] = []
NUMBER = 0
POOL = np.zeros(3)


@dataclass(frozen=True)
class Case:
    """`build` makes the model, `watch` returns the state that a call of it changes."""

    name: str
    build: Callable[[], nn.Module]
    watch: Callable[[Any, Any], Any]
    args: Callable[[], tuple[Any, ...]] = lambda: (torch.ones(2, 4),)
    mode: str = "eval"


CASES: list[Case] = []


def case(
    watch: Callable[[Any, Any], Any],
    args: Callable[[], tuple[Any, ...]] = lambda: (torch.ones(2, 4),),
    mode: str = "eval",
    **attributes: Callable[[], Any],
) -> Callable[[Callable[..., Any]], type[nn.Module]]:
    """Add a case for a class, or for a `forward` of a model with these attributes."""

    def initialise(self: Any) -> None:
        nn.Module.__init__(self)
        for name, make in attributes.items():
            setattr(self, name, make())

    def add(model: Any) -> type[nn.Module]:
        if not isinstance(model, type):
            name = "".join(word[0].upper() + word[1:] for word in model.__name__.split("_"))
            model = type(name, (nn.Module,), {"__init__": initialise, "forward": model})
        CASES.append(Case(model.__name__, model, watch, args, mode))
        return model

    return add


def linear() -> nn.Module:
    return nn.Linear(4, 4)


@case(lambda m, _: m.linear.weight, linear=linear)
def weight_by_data(self: Any, x: Tensor) -> Tensor:
    self.linear.weight.data.add_(1)
    return self.linear(x)


@case(lambda m, _: m.linear.weight.data_ptr(), linear=linear)
def weight_replaced(self: Any, x: Tensor) -> Tensor:
    self.linear.weight.data = self.linear.weight.data * 2
    return self.linear(x)


@case(lambda m, _: m.linear.weight, linear=linear)
def weight_clamped(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        self.linear.weight.clamp_(-0.1, 0.1)
    return self.linear(x)


@case(lambda _, args: args[0])
def input_by_data(self: Any, x: Tensor) -> Tensor:
    x.data.add_(1)
    return x * 2


@case(lambda _, args: args[0], args=lambda: (torch.full((2, 4), float("nan")),))
def nan_input_by_data(self: Any, x: Tensor) -> Tensor:
    x.data.zero_()
    return x * 2


@case(lambda _, args: args[0], args=lambda: ([torch.ones(2)],))
def input_list_grows(self: Any, x: list[Tensor]) -> Tensor:
    x.append(x[0] + 1)
    return x[-1]


@case(
    lambda m, _: (m.mean, m.var),
    mean=lambda: nn.Buffer(torch.zeros(4)),
    var=lambda: nn.Buffer(torch.ones(4)),
)
def batch_norm_function(self: Any, x: Tensor) -> Tensor:
    """Eager mode updates the statistics without a new version."""
    return nn.functional.batch_norm(x, self.mean, self.var, training=True)


@case(
    lambda m, _: (m.norm.running_mean, m.norm.num_batches_tracked),
    mode="train",
    norm=lambda: nn.BatchNorm1d(4),
)
def batch_norm_layer(self: Any, x: Tensor) -> Tensor:
    return self.norm(x)


@case(
    lambda m, _: (m.codebook, m.initialised),
    codebook=lambda: nn.Buffer(torch.zeros(3, 4)),
    initialised=lambda: nn.Buffer(torch.tensor(False)),
)
def codebook(self: Any, x: Tensor) -> Tensor:
    """Initialises itself at the first call."""
    if not self.initialised:
        self.codebook.data.copy_(x[:1].expand(3, 4))
        self.initialised.data.fill_(True)
    return x - self.codebook[0]


@case(lambda m, _: m.linear.weight.grad, mode="train", linear=linear)
def gradients(self: Any, x: Tensor) -> Tensor:
    return self.linear(x)


@case(lambda m, _: m.scale, scale=lambda: torch.ones(1))
def tensor_attribute(self: Any, x: Tensor) -> Tensor:
    self.scale.data.mul_(2)
    return x * self.scale


@case(lambda *_: ByClass.ready)
class ByClass(nn.Module):
    ready = False

    def forward(self, x: Tensor) -> Tensor:
        x = x + 1
        if not ByClass.ready:
            print("first")
            ByClass.ready = True
        return x * 2


@case(lambda *_: ClassDict.cache)
class ClassDict(nn.Module):
    cache: ClassVar[dict[int, Tensor]] = {}

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] not in self.cache:
            self.cache[x.shape[0]] = torch.ones(4)
        return x * self.cache[x.shape[0]]


class Base(nn.Module):
    built = 0


@case(lambda *_: Base.built)
class BaseClass(Base):
    def forward(self, x: Tensor) -> Tensor:
        Base.built += 1
        return x + Base.built


@case(lambda m, _: hasattr(type(m), "shape"))
def new_class_attribute(self: Any, x: Tensor) -> Tensor:
    type(self).shape = tuple(x.shape)
    return x + 1


@case(lambda *_: NUMBER)
def global_number(self: Any, x: Tensor) -> Tensor:
    global NUMBER
    NUMBER += 1
    return x + 1


@case(lambda *_: (FLAGS, HISTORY))
def global_containers(self: Any, x: Tensor) -> Tensor:
    FLAGS["seen"] += 1
    HISTORY.append(x.dim())
    return x + 1


@case(lambda *_: helpers.COUNT)
def helper_global(self: Any, x: Tensor) -> Tensor:
    return helpers.counted(x) * 2


@case(lambda *_: (sorted(helpers.NAMES), list(helpers.LAST)))
def helper_set_and_deque(self: Any, x: Tensor) -> Tensor:
    return helpers.named(x) + 1


@case(lambda *_: (helpers.Registry.known, helpers.Registry.calls))
def helper_class(self: Any, x: Tensor) -> Tensor:
    return helpers.registered(x) * 2


@case(lambda *_: helpers.METER.total)
def helper_object(self: Any, x: Tensor) -> Tensor:
    return helpers.metered(x) + 1


@case(lambda *_: helpers.SCALE)
def helper_tensor(self: Any, x: Tensor) -> Tensor:
    helpers.SCALE.data.add_(1)
    return x * helpers.SCALE


@case(lambda *_: helpers.COUNT)
class InAnotherMethod(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return self.step(x)

    def step(self, x: Tensor) -> Tensor:
        helpers.COUNT += 1
        return x + 1


def hooked() -> nn.Module:
    module = linear()
    module.register_forward_hook(lambda *_: helpers.METER.add())
    return module


@case(lambda *_: helpers.METER.total, linear=hooked)
def in_a_hook(self: Any, x: Tensor) -> Tensor:
    return self.linear(x)


@case(lambda m, _: len(m.linear._forward_hooks), linear=linear)
def adds_a_hook(self: Any, x: Tensor) -> Tensor:
    self.linear.register_forward_hook(lambda *_: None)
    return self.linear(x)


@case(lambda m, _: m.generator.get_state(), generator=lambda: torch.Generator().manual_seed(0))
def torch_generator(self: Any, x: Tensor) -> Tensor:
    return x + torch.rand(4, generator=self.generator)


@case(lambda m, _: m.random.getstate(), random=lambda: random.Random(0))
def python_random(self: Any, x: Tensor) -> Tensor:
    return x * 2 if self.random.random() > 2 else x * 3


@case(lambda m, _: str(m.random.bit_generator.state), random=lambda: np.random.default_rng(0))
def numpy_generator(self: Any, x: Tensor) -> Tensor:
    return x * float(self.random.random())


@case(lambda m, _: (m.counts.tolist(), POOL.tolist()), counts=lambda: np.zeros(2))
def numpy_arrays(self: Any, x: Tensor) -> Tensor:
    self.counts[0] += 1
    POOL[1] += 1
    return x + 1


@case(
    lambda m, _: (repr(m.counter), m.order.__length_hint__()),
    counter=itertools.count,
    order=lambda: iter([1, 2, 3, 4, 5, 6, 7, 8, 9]),
)
def iterators(self: Any, x: Tensor) -> Tensor:
    return x + next(self.counter) + next(self.order)


def count_up() -> Iterator[int]:
    yield from range(100)


@case(lambda m, _: m.numbers.gi_frame.f_lasti if m.numbers.gi_frame else None, numbers=count_up)
def a_generator(self: Any, x: Tensor) -> Tensor:
    return x + next(self.numbers)


class Slots:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


@case(lambda m, _: m.slots.count, slots=Slots)
def slots_object(self: Any, x: Tensor) -> Tensor:
    self.slots.count += 1
    return x + 1


def closed() -> nn.Module:
    count = 0

    class Closure(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            nonlocal count
            count += 1
            return x + 1

        def counted(self) -> int:
            return count

    return Closure()


CASES.append(Case("Closure", closed, lambda m, _: m.counted()))


def with_default(x: Tensor, seen: list[int] = []) -> Tensor:  # noqa: B006
    seen.append(x.dim())
    return x + 1


@case(lambda *_: with_default.__defaults__)
def default_argument(self: Any, x: Tensor) -> Tensor:
    return with_default(x) * 2


@case(lambda *_: with_default.__dict__.get("count"))
def function_attribute(self: Any, x: Tensor) -> Tensor:
    with_default.count = 1  # type: ignore[attr-defined]
    return x + 1


SETTINGS = {
    "DefaultDevice": ("torch.set_default_device('meta')", "str(torch.get_default_device())"),
    "DefaultDtype": ("torch.set_default_dtype(torch.float64)", "str(torch.get_default_dtype())"),
    "Deterministic": (
        "torch.use_deterministic_algorithms(True, warn_only=True)",
        "torch.get_deterministic_debug_mode()",
    ),
    "Threads": ("torch.set_num_threads(3)", "torch.get_num_threads()"),
    "MatmulPrecision": (
        "torch.set_float32_matmul_precision('medium')",
        "torch.get_float32_matmul_precision()",
    ),
    "CudnnBenchmark": (
        "torch.backends.cudnn.benchmark = True",
        "bool(torch.backends.cudnn.benchmark)",
    ),
    "AnomalyMode": ("torch.autograd.set_detect_anomaly(True)", "torch.is_anomaly_enabled()"),
    "PrintOptions": (
        "torch.set_printoptions(precision=2)",
        "torch._tensor_str.PRINT_OPTS.precision",
    ),
    "NumpyPrintOptions": ("np.set_printoptions(precision=2)", "np.get_printoptions()['precision']"),
    "Environment": ("os.environ['LEAVING'] = '1'", "os.environ.get('LEAVING')"),
    "LoggerLevel": ("LOG.setLevel(logging.ERROR)", "LOG.level"),
    "RootLoggerLevel": ("logging.getLogger().setLevel(5)", "logging.getLogger().level"),
    "DynamoConfig": (
        "torch._dynamo.config.cache_size_limit = 3",
        "torch._dynamo.config.cache_size_limit",
    ),
    "InductorConfig": (
        "torch._inductor.config.max_autotune = True",
        "torch._inductor.config.max_autotune",
    ),
    "Gradients": ("torch.set_grad_enabled(False)", "torch.is_grad_enabled()"),
    "Seed": ("torch.manual_seed(7)", "torch.initial_seed()"),
    "PythonSeed": ("random.seed(7)", "random.getstate()"),
    "NumpySeed": ("np.random.seed(7)", "str(np.random.get_state())"),
    "WorkingFolder": ("os.chdir('/')", "os.getcwd()"),
    "Path": ("sys.path.append('/nowhere')", "list(sys.path)"),
    "RecursionLimit": (
        "sys.setrecursionlimit(sys.getrecursionlimit() + 7)",
        "sys.getrecursionlimit()",
    ),
}
"""What a model does to a setting of its process, and what shows it."""

FORWARD = "def forward(self, x):\n    {}\n    return x + 1"

for name, (statement, shown) in SETTINGS.items():
    made: dict[str, Any] = {}
    exec(FORWARD.format(statement), globals(), made)
    model = type(name, (nn.Module,), made)
    CASES.append(Case(name, model, lambda *_, shown=shown: eval(shown)))


def plain(value: Any) -> Any:
    """A value that JSON can write and that compares by content."""
    if isinstance(value, Tensor):
        return (list(value.shape), str(value.tolist()))
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def checked(one: Case) -> dict[str, Any]:
    model, args = one.build(), one.args()
    before = plain(one.watch(model, args))
    ids = [id(leaf) for leaf in (*model.parameters(), *model.buffers())]
    result = compilewatch.check(model, *args, mode=one.mode)
    after = plain(one.watch(model, args))
    same_objects = ids == [id(leaf) for leaf in (*model.parameters(), *model.buffers())]
    return {
        "left_as_it_was": after == before and same_objects,
        "left": list(result.left),
        "status": result.status.value,
        "breaks": len(result.breaks),
        "graphs": result.graphs,
        "fullgraph": result.fullgraph,
        "detail": result.detail,
    }


def here(one: Case) -> dict[str, Any]:
    """What a check says that cannot copy the process."""
    with mock.patch.object(evaluation, "hindrance", return_value="a test has no fork"):
        return checked(one)


def changes(one: Case) -> bool:
    """Whether a call in eager mode changes what is watched."""
    model, args = one.build().train(one.mode == "train"), one.args()
    before = plain(one.watch(model, args))
    out = model(*args)
    if one.mode == "train":
        out.sum().backward()
    return bool(plain(one.watch(model, args)) != before)


def captured(one: Case) -> dict[str, Any]:
    """What plain PyTorch captures: graphs, and whether it met a graph break."""
    model, args = one.build().train(one.mode == "train"), one.args()
    graphs: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(1)
        return graph.forward

    with torch.set_grad_enabled(one.mode == "train"):
        torch.compile(model, backend=backend)(*args)
    frames = counters["frames"]
    cuts = sum(counters["graph_break"].values()) + Reports.count
    return {"graphs": len(graphs), "broken": cuts > 0 or frames["total"] > frames["ok"]}


def accepted(one: Case) -> bool:
    model, args = one.build().train(one.mode == "train"), one.args()
    try:
        with torch.set_grad_enabled(one.mode == "train"):
            torch.compile(model, backend="eager", fullgraph=True)(*args)
    except Exception:  # noqa: BLE001  (whatever refuses, refuses)
        return False
    return True


STEPS = (checked, here, changes, captured, accepted)


def main() -> None:
    sys.stdout = sys.stderr  # what the models print
    logging.getLogger("torch.__trace").addHandler(Reports(logging.DEBUG))
    torch._dynamo.explain(nn.Linear(4, 4))(torch.ones(3, 4))  # imports what the forks need
    torch._dynamo.reset()
    counters.clear()
    Reports.count = 0
    figures = {
        one.name: {step.__name__: apart(step, one) for step in STEPS}
        for one in CASES
        if one.name in sys.argv[1:] or len(sys.argv) == 1
    }
    os.write(1, b"\n" + json.dumps(figures).encode())


if __name__ == "__main__":
    main()
