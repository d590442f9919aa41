"""The operations that claims are made of, and how they look in Python code.

The names are few and general, so that a plan can say what an implementation must contain without
saying how it is written. A stock layer such as `nn.MultiheadAttention` contains none of them: it is
what a claim is distinguished from.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

OPERATIONS: dict[str, frozenset[str]] = {
    "sigmoid": frozenset({"sigmoid", "Sigmoid", "logsigmoid", "expit"}),
    "tanh": frozenset({"tanh", "Tanh"}),
    "softmax": frozenset({"softmax", "Softmax", "log_softmax", "gumbel_softmax"}),
    "softplus": frozenset({"softplus", "Softplus"}),
    "relu": frozenset({"relu", "ReLU", "relu6", "clamp_min"}),
    "gelu": frozenset({"gelu", "GELU"}),
    "silu": frozenset({"silu", "SiLU"}),
    "exp": frozenset({"exp", "expm1", "exp2"}),
    "log": frozenset({"log", "log1p", "log2", "logsumexp"}),
    "sqrt": frozenset({"sqrt", "rsqrt"}),
    "sine": frozenset({"sin", "cos"}),
    "norm": frozenset({"norm", "normalize", "vector_norm", "cosine_similarity"}),
    "mean": frozenset({"mean", "avg_pool1d", "avg_pool2d", "adaptive_avg_pool2d"}),
    "variance": frozenset({"var", "std", "var_mean", "std_mean"}),
    "maximum": frozenset({"max", "amax", "maximum", "max_pool2d"}),
    "cumulative_sum": frozenset({"cumsum", "cumprod", "logcumsumexp"}),
    "top_k": frozenset({"topk", "sort", "argsort", "kthvalue"}),
    "fourier": frozenset({"fft", "rfft", "ifft", "irfft", "fft2", "rfft2", "irfft2"}),
    "outer": frozenset({"outer", "ger"}),
    "multiply": frozenset({"mul", "multiply", "mul_", "addcmul", "lerp"}),
    "divide": frozenset({"div", "divide", "true_divide", "reciprocal"}),
    "subtract": frozenset({"sub", "subtract", "rsub"}),
    "power": frozenset({"pow", "square"}),
    "matmul": frozenset({"matmul", "bmm", "mm", "einsum", "linear", "baddbmm", "addmm"}),
    "convolution": frozenset({"conv1d", "conv2d", "conv3d", "Conv1d", "Conv2d", "unfold"}),
    "shift": frozenset({"roll", "shift", "pad"}),
    "where": frozenset({"where", "masked_fill", "masked_fill_"}),
}
"""Operation -> names of functions, methods and layers that do it."""

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.Sub: "subtract",
    ast.Pow: "power",
    ast.MatMult: "matmul",
}

_BY_NAME = {name: operation for operation, names in OPERATIONS.items() for name in names}


def operations_in(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """Yield the operations of some nodes with their lines."""
    for node in nodes:
        for inner in ast.walk(node):
            yield from _of(inner)


def _of(node: ast.AST) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _OPERATORS:
        operation = _OPERATORS[type(node.op)]
        numbers = isinstance(node, ast.BinOp) and _is_number(node.left) and _is_number(node.right)
        if not numbers:
            yield operation, node.lineno
    if isinstance(node, ast.Call):
        name = called_name(node)
        if name in _BY_NAME:
            yield _BY_NAME[name], node.lineno


def called_name(node: ast.Call) -> str:
    """The last part of what is called: `softmax` for `torch.nn.functional.softmax(…)`."""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is_number(node: ast.AST) -> bool:
    """Whether an operand is plainly a number and no tensor."""
    return isinstance(node, ast.Constant)
