"""Run a generated module in eager mode, compare it with formulas, or train it; in a sandbox.

This file is copied into the sandbox beside the generated module, and reads its `mode` from
`request.json` beside it. `eager` runs the module and lets the submodules of formulas compute random
values. `compare` runs in another sandbox without generated code: it computes the formulas of the
same random values, which follow from a seed that is drawn for each run, so that no code can hold
prepared results. They write `out/result.json` and `out/checks.json`. `train` trains briefly on
synthetic data. Called with the argument `request`, it evaluates a request of the sweep like a child
of the worker. But for that, it imports torch and the standard library only.
"""

import ast
import hashlib
import json
import math
import sys
import time
import traceback
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

MODULE = "generated"
FOLDER = Path(__file__).resolve().parent
SCALE = 0.5
MOST_ELEMENTS = 2**20
"""Of one tensor: 4 MiB."""


def values(seed: str, name: str, shape: Sequence[int]) -> torch.Tensor:
    """Normal values with a standard deviation of 0.5, which follow from seed, name and shape.

    Raises ValueError for a shape without elements, with which every comparison would hold, and for
    one with too many.
    """
    sizes = tuple(int(size) for size in shape)
    elements = 1
    for size in sizes:
        elements *= size
        if size < 1 or elements > MOST_ELEMENTS:
            raise ValueError(f"{name} has the shape {list(sizes)}, which cannot be compared")
    drawn = hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7]
    generator = torch.Generator().manual_seed(int.from_bytes(drawn, "big"))
    return torch.randn(sizes, generator=generator) * SCALE


# --- eager mode ---


def listed(value: Any) -> Any:
    """A tensor as nested lists, which JSON can hold. Raises for one that cannot be compared."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        raise TypeError(f"{type(value).__name__} instead of a tensor with elements")
    if value.numel() > MOST_ELEMENTS:
        raise ValueError(f"the shape {list(value.shape)} is too large to be compared")
    return value.detach().to("cpu", torch.float32).tolist()


def answer(
    model: torch.nn.Module, inputs: tuple[Any, ...], binding: dict[str, Any], seed: str
) -> dict[str, Any]:
    """What a submodule computes of random inputs and parameters, as data.

    Parameters and buffers that belong to the formula get random values, and submodules return
    random values of their own shape instead, so that nothing in the formula is of the code's own
    choice. The formula is not here: the mode `compare` computes it, in another sandbox.
    """
    module = model.get_submodule(binding["module"]) if binding["module"] else model
    called: list[bool] = []
    handle = module.register_forward_hook(lambda *_: called.append(True))
    try:
        model(*inputs)
    finally:
        handle.remove()
    if not called:
        return {"why": f"model() does not use {binding['module']}"}
    module.eval()
    arguments = [values(seed, bound["symbol"], bound["shape"]) for bound in binding["inputs"]]
    attributes = {
        bound["symbol"]: attrgetter(bound["attribute"])(module) for bound in binding["attributes"]
    }
    calls: dict[str, list[tuple[Any, ...]]] = {}

    def prepared(name: str, value: Any) -> dict[str, Any]:
        """Give a symbol of the formula its random value, and say what kind of symbol it is."""
        if isinstance(value, torch.nn.Module):
            symbol: dict[str, Any] = {"kind": "module"}
            calls[name], original = [], value.forward

            def forward(*arguments: Any) -> torch.Tensor:
                calls[name].append(arguments)
                symbol["shape"] = list(original(*arguments).shape)
                return values(seed, name, symbol["shape"])

            value.forward = forward
            return symbol
        if not isinstance(value, torch.Tensor):
            return {"kind": "number", "value": float(value)}
        if not value.is_floating_point():
            return {"kind": "constant", "value": listed(value)}
        value.copy_(values(seed, name, value.shape))
        return {"kind": "tensor", "shape": list(value.shape)}

    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            # One that the formula does not have must not be hidden by an initial value of zero.
            parameter.copy_(values(seed, f"parameter {number}", parameter.shape))
        symbols = {name: prepared(name, value) for name, value in attributes.items()}
        output = listed(module(*arguments))
    for name, of_symbol in calls.items():
        if not of_symbol:
            raise ValueError(f"the submodule of {name} is not called")
        symbols[name]["calls"] = [list(map(listed, call)) for call in of_symbol]
    return {"symbols": symbols, "output": output}


def answers(make: Any, inputs: tuple[Any, ...], request: dict[str, Any]) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for number, binding in enumerate(request["bindings"]):
        try:
            one = answer(make(), inputs, binding, f"{request['seed']}/{number}")
        except Exception as error:  # noqa: BLE001  (generated code)
            one = {"why": f"{type(error).__name__}: {error}"[:300]}
        results.append(one)
    return results


def run(request: dict[str, Any], state: dict[str, Any], mark: Any, folder: Path) -> None:
    mark("import")
    generated = __import__(MODULE)
    mark("create")
    torch.manual_seed(0)
    model = generated.model()
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model() returned {type(model).__name__}, not an nn.Module")
    numbers = state["numbers"] = {"parameters": sum(p.numel() for p in model.parameters())}
    mark("inputs")
    inputs = generated.inputs()
    if not isinstance(inputs, tuple):
        raise TypeError(f"inputs() returned {type(inputs).__name__}, not a tuple")
    mark("eager")
    begun = time.perf_counter()
    output = model(*inputs)
    numbers["eager_seconds"] = time.perf_counter() - begun
    outputs = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    if not outputs:
        raise TypeError("the model returned no tensor")
    if not all(bool(torch.isfinite(t).all()) for t in outputs if t.is_floating_point()):
        raise ValueError("the output contains values that are not finite")
    mark("backward")
    loss = generated.loss(output, inputs)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise TypeError("loss() returned no scalar tensor")
    if not bool(torch.isfinite(loss)):
        raise ValueError(f"the loss is {float(loss)}")
    loss.backward()
    numbers["loss"] = float(loss.detach())
    trained = [p for p in model.parameters() if p.requires_grad]
    if trained and all(p.grad is None for p in trained):
        raise ValueError("no parameter has a gradient")
    mark("formulas")
    returned = answers(generated.model, inputs, request)
    (folder / "returned.json").write_text(json.dumps(returned))
    mark("done")


def eager(request: dict[str, Any]) -> None:
    """Run the module; the state of `out/result.json` says in which step a process ended."""
    out = FOLDER / "out"
    out.mkdir(exist_ok=True)
    state: dict[str, Any] = {}

    def mark(phase: str) -> None:
        state["phase"] = phase
        temporary = out / "result.json.new"
        temporary.write_text(json.dumps(state))
        temporary.replace(out / "result.json")

    try:
        run(request, state, mark, out)
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  (generated code)
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in frames if Path(f.filename).stem == MODULE]
        message = f"{type(error).__name__}: {error}"[:1000]
        state["error"] = {"message": message, "line": lines[-1] if lines else None}
        mark(state.get("phase", "import"))
        sys.exit(1)


# --- formulas ---

TOLERANCE = 1e-4
FUNCTIONS: dict[str, Any] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softmax": lambda x: torch.softmax(x, -1),
    "relu": torch.relu,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "abs": torch.abs,
    "sum": lambda x: x.sum(-1, keepdim=True),
    "mean": lambda x: x.mean(-1, keepdim=True),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1, keepdim=True),
    "matmul": torch.matmul,
    "transpose": lambda x: x.transpose(-2, -1),
}
"""The functions of a formula. Reductions are over the last dimension, which they keep."""

OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: lambda a, b: a**b,
    ast.MatMult: lambda a, b: a @ b,
}


class Replaced:
    """A submodule of the generated code, which was made to return `value` there."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *arguments: Any) -> torch.Tensor:
        self.calls.append(arguments)
        return self.value


def value_of(node: ast.AST, symbols: dict[str, Any]) -> Any:
    """The value of an expression over symbols. Raises ValueError for anything else."""
    if isinstance(node, ast.Expression):
        return value_of(node.body, symbols)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)  # the power of two integers can be of any length
    if isinstance(node, ast.Name):
        if node.id not in symbols:
            raise ValueError(f"no binding gives the symbol {node.id}")
        return symbols[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -value_of(node.operand, symbols)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = value_of(node.left, symbols), value_of(node.right, symbols)
        return OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        called = symbols.get(node.func.id)
        if not isinstance(called, Replaced):
            called = FUNCTIONS.get(node.func.id)
        if called is not None:
            return called(*(value_of(argument, symbols) for argument in node.args))
    raise ValueError(f"a formula cannot contain {ast.unparse(node)}")


def tensor_of(value: Any) -> torch.Tensor:
    """A tensor that generated code returned. Raises ValueError for one without elements."""
    tensor = torch.tensor(value, dtype=torch.float32)
    if not tensor.numel():
        raise ValueError("it returned a tensor without elements")
    return tensor


def symbol_of(seed: str, name: str, about: dict[str, Any]) -> Any:
    """The value of a symbol: the same random values as there, or what the code has for it."""
    if about["kind"] == "number":
        number = float(about["value"])
        if not math.isfinite(number) or number == 0.0:
            raise ValueError(f"{name} is {number:g}, with which a formula cannot be tested")
        return number
    if about["kind"] == "constant":
        return tensor_of(about["value"])
    drawn = values(seed, name, about["shape"])
    return Replaced(drawn) if about["kind"] == "module" else drawn


def difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest value. Raises ValueError for other shapes."""
    if actual.shape != expected.shape:
        raise ValueError(
            f"the shape is {tuple(actual.shape)}, the formula's {tuple(expected.shape)}"
        )
    scale = max(1.0, expected.abs().max().item())
    return float((actual - expected).abs().max().item() / scale)


def nearest(call: tuple[Any, ...], calls_seen: list[list[Any]]) -> float:
    """The difference between a call in the formula and the nearest one of the code."""
    errors = [
        max((difference(tensor_of(actual), expected) for actual, expected in pairs), default=0.0)
        for pairs in (
            list(zip(arguments, call, strict=True))
            for arguments in calls_seen
            if len(arguments) == len(call)
        )
    ]
    if not errors:
        raise ValueError("the code calls a submodule with other arguments than the formula")
    return min(errors)


def check(
    seed: str, formula: str, binding: dict[str, Any], returned: dict[str, Any]
) -> dict[str, Any]:
    """Compare what a submodule returned with the formula."""
    if returned.get("why"):
        return {"ok": False, "why": str(returned["why"])}
    symbols = {
        bound["symbol"]: values(seed, bound["symbol"], bound["shape"])
        for bound in binding["inputs"]
    }
    for name in (bound["symbol"] for bound in binding["attributes"]):
        symbols[name] = symbol_of(seed, name, returned["symbols"][name])
    expected = value_of(ast.parse(formula, mode="eval"), symbols)
    if not isinstance(expected, torch.Tensor):
        raise ValueError("the formula has no tensor in it")
    errors = [difference(tensor_of(returned["output"]), expected)]
    for name, symbol in symbols.items():
        if isinstance(symbol, Replaced):
            calls_seen = returned["symbols"][name]["calls"]
            errors += [nearest(call, calls_seen) for call in symbol.calls]
    ok = all(error <= TOLERANCE for error in errors)  # NaN is not
    why = f"it differs from {formula} by {max(errors):.2g}"
    return {"ok": ok, "why": "" if ok else why}


def compare(request: dict[str, Any]) -> None:
    """Compare what submodules returned with the formulas; without generated code beside it."""
    checks = []
    everything = json.loads((FOLDER / "returned.json").read_text())
    for claim, formula in request["formulas"].items():
        bound = [n for n, binding in enumerate(request["bindings"]) if binding["claim"] == claim]
        if not bound:
            checks.append({"claim": claim, "ok": False, "why": "no binding says where it is"})
        for number in bound:
            try:
                seed, binding = f"{request['seed']}/{number}", request["bindings"][number]
                result = check(seed, formula, binding, everything[number])
            except Exception as error:  # noqa: BLE001  (data of generated code)
                result = {"ok": False, "why": f"{type(error).__name__}: {error}"[:300]}
            checks.append({"claim": claim, **result})
    (FOLDER / "out" / "checks.json").write_text(json.dumps(checks))


# --- training ---

STEPS = 20
RATE = 1e-3


def device() -> tuple[Any, Any]:
    """The device, and what ends a step on it."""
    try:
        import torch_xla  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return torch.device("cpu"), lambda: None
    return torch_xla.device(), torch_xla.sync


def train(_: dict[str, Any]) -> None:
    """Print one line `METRICS: {...}` for each reported step; on the XLA device, where one is."""
    sys.path.insert(0, str(FOLDER))
    generated = __import__(MODULE)
    torch.manual_seed(0)
    where, end_step = device()
    model = generated.model().to(where).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    begun = time.perf_counter()
    for step in range(1, STEPS + 1):
        inputs = generated.inputs()
        inputs = tuple(i.to(where) if isinstance(i, torch.Tensor) else i for i in inputs)
        optimizer.zero_grad()
        loss = generated.loss(model(*inputs), inputs)
        loss.backward()
        optimizer.step()
        end_step()
        if step == 1 or step % 5 == 0:
            value = float(loss.detach().cpu())
            seconds = time.perf_counter() - begun
            numbers = {"step": step, "training_loss": value, "seconds": round(seconds, 4)}
            print("METRICS: " + json.dumps(numbers), flush=True)
    print(f"trained {STEPS} steps on {where}, synthetic data", flush=True)


def evaluate() -> None:
    """Evaluate the request in `start.json`; the sandbox limits this process from outside."""
    import msgspec

    from compilewatch.contract.messages import START_FILE, Start
    from compilewatch.worker.process import child, warmup

    start = msgspec.json.decode(Path(START_FILE).read_bytes(), type=Start)
    folder = Path(start.folder)
    folder.mkdir(parents=True, exist_ok=True)
    target = start.request.target.name
    child.evaluate(start, folder, lambda: warmup.import_modules([target]))


def main() -> None:
    if sys.argv[1:] == ["request"]:
        evaluate()
        return
    request = json.loads((FOLDER / "request.json").read_text())
    {"eager": eager, "compare": compare, "train": train}[request["mode"]](request)


if __name__ == "__main__":
    main()
