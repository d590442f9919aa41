"""What plain PyTorch says of the models in one_graph.py: one graph without guards, and eager mode.

Knows nothing of compilewatch. Reads a JSON object, model -> list of [x.0, x.1], the first of them
captured; prints one, model -> list of `pass`, `mismatch`, `error`, or `unsupported` where eager
mode fails.
"""

import copy
import json
import sys

import one_graph  # type: ignore[import-not-found]  # beside this file
import torch
from torch import nn


def judged(module: nn.Module, calls: list[list[int]]) -> list[str]:
    torch._dynamo.reset()
    untouched = copy.deepcopy(module)
    compiled = torch.compile(
        module,
        backend="aot_eager",
        fullgraph=True,
        dynamic=False,
        options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
    )
    tensors = [torch.randn(*sizes, one_graph.FEATURES) for sizes in calls]
    torch._dynamo.maybe_mark_dynamic(tensors[0], [0, 1])
    compiled(tensors[0])
    return [verdict(compiled, module, untouched, tensor) for tensor in tensors]


def verdict(compiled: nn.Module, module: nn.Module, untouched: nn.Module, x: torch.Tensor) -> str:
    try:
        expected = copy.deepcopy(untouched)(x)
    except Exception:  # noqa: BLE001  (model code)
        return "unsupported"
    module.__dict__.update(copy.deepcopy(untouched.__dict__))
    try:
        actual = compiled(x)
    except Exception:  # noqa: BLE001  (what the graph raises)
        return "error"
    same = actual.shape == expected.shape and actual.dtype == expected.dtype
    same = same and torch.allclose(actual, expected, rtol=1e-4, atol=1e-4)
    return "pass" if same else "mismatch"


if __name__ == "__main__":
    with torch.no_grad():
        asked = json.load(sys.stdin)
        models = {name: getattr(one_graph, name)().eval() for name in asked}
        print(json.dumps({name: judged(models[name], calls) for name, calls in asked.items()}))
