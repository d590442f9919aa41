"""Compute formulas and compare them with what generated code returned; runs in its own sandbox.

No generated code is in this process: it gets the data that such code returned, and makes the same
random values from the seed. Reads `request.json` beside it and writes `out/result.json`. Imports
torch and the standard library only.
"""

from __future__ import annotations

import ast
import json
import math
import re
from pathlib import Path
from typing import Any

import torch
from challenge import values  # type: ignore[import-not-found,unused-ignore]

FOLDER = Path(__file__).resolve().parent
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


def tensor_of(about: dict[str, Any]) -> torch.Tensor:
    """A tensor that generated code returned: raw numbers of 32 bits in a file beside this one."""
    if not re.fullmatch(r"tensor-[0-9]{1,6}", about["file"]):
        raise ValueError("it names another file")
    data = (FOLDER / about["file"]).read_bytes()
    shape = tuple(int(size) for size in about["shape"])
    if not data or len(data) != 4 * math.prod(shape):
        raise ValueError(f"it returned {len(data)} bytes for the shape {list(shape)}")
    return torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(shape)


def symbol_of(seed: str, name: str, about: dict[str, Any]) -> Any:
    """The value of a symbol: the same random values as there, or what the code has for it."""
    if about["kind"] == "number":
        number = float(about["value"])
        if not math.isfinite(number) or number == 0.0:
            raise ValueError(f"{name} is {number:g}, with which a formula cannot be tested")
        return number
    if about["kind"] == "constant":
        return tensor_of(about)
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


def nearest(call: tuple[Any, ...], calls_seen: list[list[dict[str, Any]]]) -> float:
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
    symbols = {name: values(seed, name, shape) for name, shape in binding["inputs"].items()}
    for name in binding["attributes"]:
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


def main() -> None:
    request = json.loads((FOLDER / "request.json").read_text())
    checks = []
    for claim, formula in request["formulas"].items():
        mine = [
            n for n, binding_row in enumerate(request["bindings"]) if binding_row["claim"] == claim
        ]
        if not mine:
            checks.append({"claim": claim, "ok": False, "why": "no binding says where it is"})
        for number in mine:
            binding = request["bindings"][number]
            try:
                returned = request["returned"][number]
                one = check(f"{request['seed']}/{number}", formula, binding, returned)
            except Exception as error:  # noqa: BLE001  (data of generated code)
                one = {"ok": False, "why": f"{type(error).__name__}: {error}"[:300]}
            checks.append({"claim": claim, **one})
    (FOLDER / "out" / "result.json").write_text(json.dumps({"checks": checks}))


if __name__ == "__main__":
    main()
