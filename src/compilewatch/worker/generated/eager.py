"""Run a generated module in eager mode and compare its formulas; runs inside of the sandbox.

Reads `request.json` beside it and replaces `out/result.json` after each step, so that the step in
which a process ended is known. Imports torch and the standard library only.
"""

from __future__ import annotations

import ast
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

MODULE = "generated"
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


def value_of(node: ast.AST, symbols: dict[str, Any]) -> Any:
    """The value of an expression over symbols. Raises ValueError for anything else."""
    if isinstance(node, ast.Expression):
        return value_of(node.body, symbols)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
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
        if node.func.id in FUNCTIONS:
            return FUNCTIONS[node.func.id](*(value_of(each, symbols) for each in node.args))
        module = symbols.get(node.func.id)
        if isinstance(module, torch.nn.Module):
            return module(*(value_of(each, symbols) for each in node.args))
    raise ValueError(f"a formula cannot contain {ast.unparse(node)}")


def attribute(module: Any, path: str) -> Any:
    """An attribute by its dotted path; parts that are numbers index a container."""
    for part in path.split("."):
        module = module[int(part)] if part.isdigit() else getattr(module, part)
    return module


def check_formula(
    model: torch.nn.Module, inputs: tuple[Any, ...], formula: str, binding: dict[str, Any]
) -> dict[str, Any]:
    """Compare what a submodule computes with the formula, with random parameters and inputs."""
    called: list[bool] = []
    module = model.get_submodule(binding["module"]) if binding["module"] else model
    handle = module.register_forward_hook(lambda *_: called.append(True))
    try:
        model(*inputs)
    finally:
        handle.remove()
    if not called:
        return {"ok": False, "why": f"model() does not use {binding['module']}"}
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
        values = {
            name: torch.randn(tuple(shape), generator=generator)
            for name, shape in binding["inputs"].items()
        }
        symbols = dict(values)
        symbols |= {s: attribute(module, path) for s, path in binding["attributes"].items()}
        found = module.eval()(*values.values())
        wanted = value_of(ast.parse(formula, mode="eval"), symbols)
    if not isinstance(found, torch.Tensor) or found.shape != wanted.shape:
        shape = tuple(getattr(found, "shape", ()))
        return {"ok": False, "why": f"the shape is {shape}, the formula's {tuple(wanted.shape)}"}
    scale = max(1.0, wanted.abs().max().item())
    error = (found - wanted).abs().max().item() / scale
    said = f"it differs from {formula} by {error:.2g}"
    return {"ok": error <= TOLERANCE, "error": error, "why": "" if error <= TOLERANCE else said}


def checks(model: torch.nn.Module, inputs: tuple[Any, ...], request: dict[str, Any]) -> list[Any]:
    found = []
    for claim, formula in request["formulas"].items():
        bindings = [each for each in request["bindings"] if each["claim"] == claim]
        if not bindings:
            found.append({"claim": claim, "ok": False, "why": "no binding says where it is"})
        for binding in bindings:
            try:
                one = check_formula(model, inputs, formula, binding)
            except Exception as error:  # noqa: BLE001  (generated code)
                one = {"ok": False, "why": f"{type(error).__name__}: {error}"[:300]}
            found.append({"claim": claim, **one})
    return found


def tensors_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for each in value for tensor in tensors_of(each)]
    return []


def run(request: dict[str, Any], state: dict[str, Any], mark: Any) -> None:
    mark("import")
    generated = __import__(MODULE)
    mark("create")
    torch.manual_seed(0)
    model = generated.model()
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model() returned {type(model).__name__}, not an nn.Module")
    state["parameters"] = sum(p.numel() for p in model.parameters())
    mark("inputs")
    inputs = generated.inputs()
    if not isinstance(inputs, tuple):
        raise TypeError(f"inputs() returned {type(inputs).__name__}, not a tuple")
    mark("eager")
    begun = time.perf_counter()
    output = model(*inputs)
    state["eager_seconds"] = time.perf_counter() - begun
    outputs = tensors_of(output)
    if not outputs:
        raise TypeError("the model returned no tensor")
    state["finite"] = all(bool(torch.isfinite(t).all()) for t in outputs if t.is_floating_point())
    if not state["finite"]:
        raise ValueError("the output contains values that are not finite")
    mark("backward")
    loss = generated.loss(output, inputs)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise TypeError("loss() returned no scalar tensor")
    loss.backward()
    state["loss"] = float(loss.detach())
    trained = [p for p in model.parameters() if p.requires_grad]
    state["without_gradient"] = sum(p.grad is None for p in trained)
    if trained and state["without_gradient"] == len(trained):
        raise ValueError("no parameter has a gradient")
    mark("formulas")
    state["checks"] = checks(generated.model(), inputs, request)
    mark("done")


def main() -> None:
    folder = Path(__file__).resolve().parent
    sys.path.insert(0, str(folder))
    out = folder / "out"
    out.mkdir(exist_ok=True)
    state: dict[str, Any] = {}

    def mark(phase: str) -> None:
        state["phase"] = phase
        temporary = out / "result.json.new"
        temporary.write_text(json.dumps(state))
        temporary.replace(out / "result.json")

    try:
        run(json.loads((folder / "request.json").read_text()), state, mark)
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  (generated code)
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in frames if Path(f.filename).stem == MODULE]
        message = f"{type(error).__name__}: {error}"[:1000]
        state["error"] = {"message": message, "line": lines[-1] if lines else None}
        mark(state.get("phase", "import"))
        sys.exit(1)


if __name__ == "__main__":
    main()
