"""Small models that leave something behind: a call changes what the case watches.

As a program, it prints one JSON object: for each case (those that are named, or all) what
`compilewatch.check` says and left where it runs in a copy of the process and where it runs in the
process itself (`here`), whether an eager call changes what is watched, and what plain PyTorch says.
Each step starts in a fork of a process that has called no model.
"""

import itertools
import json
import logging
import math
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


def linear() -> nn.Module:
    return nn.Linear(4, 4)


class ByClass(nn.Module):
    ready = False

    def forward(self, x: Tensor) -> Tensor:
        x = x + 1
        if not ByClass.ready:
            print("first")
            ByClass.ready = True
        return x * 2


class ClassDict(nn.Module):
    cache: ClassVar[dict[int, Tensor]] = {}

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] not in self.cache:
            self.cache[x.shape[0]] = torch.ones(4)
        return x * self.cache[x.shape[0]]


class Base(nn.Module):
    built = 0


class BaseClass(Base):
    def forward(self, x: Tensor) -> Tensor:
        Base.built += 1
        return x + Base.built


class InAnotherMethod(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return self.step(x)

    def step(self, x: Tensor) -> Tensor:
        helpers.COUNT += 1
        return x + 1


def count_up() -> Iterator[int]:
    yield from range(100)


class Slots:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


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


def with_default(x: Tensor, seen: list[int] = []) -> Tensor:  # noqa: B006
    seen.append(x.dim())
    return x + 1


def hooked() -> nn.Module:
    module = linear()
    module.register_forward_hook(lambda *_: helpers.METER.add())
    return module


def with_gradient() -> nn.Module:
    module = linear()
    module.weight.grad = torch.full((4, 4), 7.0)
    return module


LAYER = {"layer": linear}

STATEMENTS: dict[str, tuple[str, str, dict[str, Callable[[], Any]]]] = {
    "WeightByData": ("self.layer.weight.data.add_(1)", "m.layer.weight", LAYER),
    "WeightReplaced": (
        "self.layer.weight.data = self.layer.weight.data * 2",
        "m.layer.weight.data_ptr()",
        LAYER,
    ),
    "WeightClamped": (
        "with torch.no_grad(): self.layer.weight.clamp_(-0.1, 0.1)",
        "m.layer.weight",
        LAYER,
    ),
    "InputByData": ("x.data.add_(1)", "args[0]", {}),
    "TensorAttribute": (
        "self.scale.data.mul_(2); x = x * self.scale",
        "m.scale",
        {"scale": lambda: torch.ones(1)},
    ),
    "Attributes": (
        "self.calls += 1; self.seen.append(x.dim()); self.cache.setdefault(1, torch.rand(1))",
        "(m.calls, m.cache, m.seen)",
        {"calls": lambda: 0, "cache": dict, "seen": list},
    ),
    "NewClassAttribute": ("type(self).shape = tuple(x.shape)", "hasattr(type(m), 'shape')", {}),
    "GlobalNumber": ("global NUMBER; NUMBER += 1", "NUMBER", {}),
    "GlobalContainers": ("FLAGS['seen'] += 1; HISTORY.append(x.dim())", "(FLAGS, HISTORY)", {}),
    "Helpers": (
        "x = helpers.changed(x)",
        "(helpers.COUNT, sorted(helpers.NAMES), list(helpers.LAST), helpers.Registry.known,"
        " helpers.Registry.calls, helpers.METER.total)",
        {},
    ),
    "HelperTensor": ("helpers.SCALE.data.add_(1); x = x * helpers.SCALE", "helpers.SCALE", {}),
    "InAHook": ("x = self.layer(x)", "helpers.METER.total", {"layer": hooked}),
    "AddsAHook": (
        "self.layer.register_forward_hook(lambda *_: None)",
        "len(m.layer._forward_hooks)",
        LAYER,
    ),
    "LazyLayer": (
        "x = self.lazy(x)",
        "nn.parameter.is_lazy(m.lazy.weight)",
        {"lazy": lambda: nn.LazyLinear(3)},
    ),
    "GlobalGenerators": (
        "x = x * torch.rand(1) * random.random() * np.random.rand()",
        "(torch.get_rng_state(), random.getstate(), str(np.random.get_state()))",
        {},
    ),
    "TorchGenerator": (
        "x = x + torch.rand(4, generator=self.generator)",
        "m.generator.get_state()",
        {"generator": lambda: torch.Generator().manual_seed(0)},
    ),
    "PythonRandom": (
        "x = x * 2 if self.random.random() > 2 else x * 3",
        "str(m.random.getstate())",
        {"random": lambda: random.Random(0)},
    ),
    "NumpyGenerator": (
        "x = x * float(self.random.random())",
        "str(m.random.bit_generator.state)",
        {"random": lambda: np.random.default_rng(0)},
    ),
    "NumpyArrays": (
        "self.counts[0] += 1; POOL[1] += 1",
        "(m.counts.tolist(), POOL.tolist())",
        {"counts": lambda: np.zeros(2)},
    ),
    "BatchNormFunction": (  # eager mode updates the statistics without a new version
        "x = nn.functional.batch_norm(x, self.mean, self.var, training=True)",
        "(m.mean, m.var)",
        {"mean": lambda: nn.Buffer(torch.zeros(4)), "var": lambda: nn.Buffer(torch.ones(4))},
    ),
    "Codebook": (  # initialises itself at the first call
        "if not self.ready: self.book.data.copy_(x[:1]); self.ready.data.fill_(True)",
        "(m.book, m.ready)",
        {
            "book": lambda: nn.Buffer(torch.zeros(3, 4)),
            "ready": lambda: nn.Buffer(torch.tensor(False)),
        },
    ),
    "Iterators": (
        "x = x + next(self.counter) + next(self.order)",
        "(repr(m.counter), m.order.__length_hint__())",
        {"counter": itertools.count, "order": lambda: iter([1, 2, 3, 4, 5, 6, 7, 8, 9])},
    ),
    "AGenerator": (
        "x = x + next(self.numbers)",
        "m.numbers.gi_frame.f_lasti if m.numbers.gi_frame else None",
        {"numbers": count_up},
    ),
    "SlotsObject": ("self.slots.count += 1", "m.slots.count", {"slots": Slots}),
    "DefaultArgument": ("x = with_default(x)", "with_default.__defaults__", {}),
    "FunctionAttribute": ("with_default.count = 1", "with_default.__dict__.get('count')", {}),
}
"""What a `forward` does, what shows it, and the attributes of the model."""

SETTINGS = [
    ("torch.set_default_device('meta')", "str(torch.get_default_device())"),
    ("torch.set_default_dtype(torch.float64)", "str(torch.get_default_dtype())"),
    (
        "torch.use_deterministic_algorithms(True, warn_only=True)",
        "torch.get_deterministic_debug_mode()",
    ),
    ("torch.set_num_threads(3)", "torch.get_num_threads()"),
    ("torch.set_float32_matmul_precision('medium')", "torch.get_float32_matmul_precision()"),
    ("torch.backends.cudnn.benchmark = True", "bool(torch.backends.cudnn.benchmark)"),
    ("torch.autograd.set_detect_anomaly(True)", "torch.is_anomaly_enabled()"),
    ("torch.set_printoptions(precision=2)", "torch._tensor_str.PRINT_OPTS.precision"),
    ("np.set_printoptions(precision=2)", "np.get_printoptions()['precision']"),
    ("os.environ['LEAVING'] = '1'", "os.environ.get('LEAVING')"),
    ("LOG.setLevel(logging.ERROR)", "LOG.level"),
    ("logging.getLogger().setLevel(5)", "logging.getLogger().level"),
    ("torch._dynamo.config.cache_size_limit = 3", "torch._dynamo.config.cache_size_limit"),
    ("torch._inductor.config.max_autotune = True", "torch._inductor.config.max_autotune"),
    ("torch.set_grad_enabled(False)", "torch.is_grad_enabled()"),
    ("torch.manual_seed(7)", "torch.initial_seed()"),
    ("random.seed(7)", "random.getstate()"),
    ("np.random.seed(7)", "str(np.random.get_state())"),
    ("os.chdir('/')", "os.getcwd()"),
    ("sys.path.append('/nowhere')", "list(sys.path)"),
    ("sys.setrecursionlimit(sys.getrecursionlimit() + 7)", "sys.getrecursionlimit()"),
]
"""What a model does to a setting of its process, and what shows it."""


def model(statement: str, **attributes: Callable[[], Any]) -> Callable[[], nn.Module]:
    """A model with these attributes, whose `forward` does this with `x`."""
    methods: dict[str, Any] = {}
    exec(f"def forward(self, x):\n    {statement}\n    return x + 1", globals(), methods)

    def initialise(self: Any) -> None:
        nn.Module.__init__(self)
        for name, make in attributes.items():
            setattr(self, name, make())

    return type("Model", (nn.Module,), {"__init__": initialise, **methods})


def shows(expression: str) -> Callable[[Any, Any], Any]:
    return eval(f"lambda m, args: {expression}")


CASES: list[Case] = [
    Case("ByClass", ByClass, lambda *_: ByClass.ready),
    Case("ClassDict", ClassDict, lambda *_: ClassDict.cache),
    Case("BaseClass", BaseClass, lambda *_: Base.built),
    Case("InAnotherMethod", InAnotherMethod, lambda *_: helpers.COUNT),
    Case("Closure", closed, lambda m, _: m.counted()),
    Case(
        *("NanInputByData", model("x.data.zero_()"), shows("args[0]")),
        args=lambda: (torch.full((2, 4), math.nan),),
    ),
    Case(
        *("InputListGrows", model("x.append(x[0] + 1); x = x[-1]"), shows("args[0]")),
        args=lambda: ([torch.ones(2)],),
    ),
    Case(
        *("Gradients", model("x = self.layer(x)", layer=linear), shows("m.layer.weight.grad")),
        mode="train",
    ),
    Case(
        *("EarlierGradient", model("x = self.layer(x)", layer=with_gradient)),
        shows("m.layer.weight.grad"),
        mode="train",
    ),
    Case(
        *("BatchNormLayer", model("x = self.norm(x)", norm=lambda: nn.BatchNorm1d(4))),
        shows("(m.norm.running_mean, m.norm.num_batches_tracked)"),
        mode="train",
    ),
    *(
        Case(name, model(statement, **attributes), shows(shown))
        for name, (statement, shown, attributes) in STATEMENTS.items()
    ),
    *(
        Case(
            f"Settings{n}",
            model("; ".join(statement for statement, _ in SETTINGS[n::4])),
            shows("({})".format(", ".join(shown for _, shown in SETTINGS[n::4]))),
        )
        for n in range(4)
    ),
]


def plain(value: Any) -> Any:
    """A value that JSON can write and that compares by content."""
    if isinstance(value, Tensor):
        return (list(value.shape), str(value.tolist()))
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def all_differ(before: Any, after: Any) -> bool:
    """Whether a value has changed; of several that are watched, each."""
    if isinstance(before, list) and len(before) == len(after):
        return all(old != new for old, new in zip(before, after, strict=True))
    return bool(before != after)


def structure(model: nn.Module) -> list[Any]:
    """Which leaves, gradients, modes and hooks a model has."""
    leaves = [(id(leaf), id(leaf.grad)) for leaf in (*model.parameters(), *model.buffers())]
    return [*leaves, *((m.training, len(m._forward_hooks)) for m in model.modules())]


def checked(one: Case) -> dict[str, Any]:
    model, args = one.build(), one.args()
    for child in model.children():
        child.eval()  # a mixture of modes, which is to stay
    before, was = plain(one.watch(model, args)), structure(model)
    result = compilewatch.check(model, *args, mode=one.mode)
    after, now = plain(one.watch(model, args)), structure(model)
    out = model.train(one.mode == "train")(*args)
    if one.mode == "train":
        out.sum().backward()
    return {
        "left_as_it_was": after == before and now == was,
        "eager_call_changes": all_differ(after, plain(one.watch(model, args))),
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


STEPS = (checked, here, captured, accepted)


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
