"""Run a generated module in eager mode; runs inside of the sandbox.

It also lets the submodules of formulas compute random values, which `reference.py` compares. Reads
`request.json` beside it and replaces `out/result.json` after each step, so that the step in which a
process ended is known. Imports torch and the standard library only.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from challenge import (  # type: ignore[import-not-found,unused-ignore]
    MOST_ELEMENTS,
    values,
)

MODULE = "generated"


def attribute(module: Any, path: str) -> Any:
    """An attribute by its dotted path; parts that are numbers index a container."""
    for part in path.split("."):
        module = module[int(part)] if part.isdigit() else getattr(module, part)
    return module


class Returned:
    """Writes what submodules compute into files, as raw numbers of 32 bits."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def tensor(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, torch.Tensor) or not value.numel():
            raise TypeError(f"{type(value).__name__} instead of a tensor with elements")
        if value.numel() > MOST_ELEMENTS:
            raise ValueError(f"the shape {list(value.shape)} is too large to be compared")
        name = f"tensor-{self._count}"
        self._count += 1
        data = value.detach().to("cpu", torch.float32).contiguous().flatten()
        (self._folder / name).write_bytes(data.numpy().tobytes())
        return {"file": name, "shape": list(value.shape)}


def answer(
    model: torch.nn.Module,
    inputs: tuple[Any, ...],
    binding: dict[str, Any],
    seed: str,
    returned: Returned,
) -> dict[str, Any]:
    """What a submodule computes of random inputs and parameters, as data.

    Parameters and buffers that belong to the formula get random values, and submodules return
    random values, so that nothing in the formula is of the code's own choice. The formula is not
    here: `reference.py` computes it, in another sandbox.
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
    arguments = [values(seed, name, shape) for name, shape in binding["inputs"].items()]
    bound = {name: attribute(module, path) for name, path in binding["attributes"].items()}
    arguments_seen: dict[str, list[tuple[Any, ...]]] = {}
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            # One that the formula does not have must not be hidden by an initial value of zero.
            parameter.copy_(values(seed, f"parameter {number}", parameter.shape))
        shapes = output_shapes(module, arguments, bound)
        symbols = {
            name: prepare(value, name, seed, shapes, arguments_seen, returned)
            for name, value in bound.items()
        }
        output = returned.tensor(module(*arguments))
    for name, calls in arguments_seen.items():
        symbols[name]["calls"] = [
            [returned.tensor(argument) for argument in call] for call in calls
        ]
    return {"symbols": symbols, "output": output}


def prepare(
    value: Any,
    name: str,
    seed: str,
    shapes: dict[str, list[int]],
    arguments_seen: dict[str, list[tuple[Any, ...]]],
    returned: Returned,
) -> dict[str, Any]:
    """Give a symbol of the formula its random value, and say what kind of symbol it is."""
    if isinstance(value, torch.nn.Module):
        if name not in shapes:
            raise ValueError(f"the submodule of {name} is not called")
        arguments_seen[name] = []
        replace(value, values(seed, name, shapes[name]), arguments_seen[name])
        return {"kind": "module", "shape": shapes[name]}
    if not isinstance(value, torch.Tensor):
        return {"kind": "number", "value": float(value)}
    if not value.is_floating_point():
        return {"kind": "constant", **returned.tensor(value)}
    value.copy_(values(seed, name, value.shape))
    return {"kind": "tensor", "shape": list(value.shape)}


def output_shapes(
    module: torch.nn.Module, arguments: list[torch.Tensor], bound: dict[str, Any]
) -> dict[str, list[int]]:
    """The shapes of what the bound submodules return."""
    shapes: dict[str, list[int]] = {}

    def note(name: str) -> Any:
        return lambda _module, _given, output: shapes.update({name: list(output.shape)})

    handles = [
        value.register_forward_hook(note(name))
        for name, value in bound.items()
        if isinstance(value, torch.nn.Module)
    ]
    if handles:
        module(*arguments)
    for handle in handles:
        handle.remove()
    return shapes


def replace(module: torch.nn.Module, value: torch.Tensor, calls: list[tuple[Any, ...]]) -> None:
    """Let a submodule return a value and note its arguments."""

    def forward(*arguments: Any) -> torch.Tensor:
        calls.append(arguments)
        return value

    module.forward = forward


def answers(
    make: Any, inputs: tuple[Any, ...], request: dict[str, Any], folder: Path
) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    returned = Returned(folder)
    for number, binding in enumerate(request["bindings"]):
        try:
            one = answer(make(), inputs, binding, f"{request['seed']}/{number}", returned)
        except Exception as error:  # noqa: BLE001  (generated code)
            one = {"why": f"{type(error).__name__}: {error}"[:300]}
        results.append(one)
    return results


def tensors_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for element in value for tensor in tensors_of(element)]
    return []


def run(request: dict[str, Any], state: dict[str, Any], mark: Any, folder: Path) -> None:
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
    if not bool(torch.isfinite(loss)):
        raise ValueError(f"the loss is {float(loss)}")
    loss.backward()
    state["loss"] = float(loss.detach())
    trained = [p for p in model.parameters() if p.requires_grad]
    state["without_gradient"] = sum(p.grad is None for p in trained)
    if trained and state["without_gradient"] == len(trained):
        raise ValueError("no parameter has a gradient")
    mark("formulas")
    state["returned"] = answers(generated.model, inputs, request, folder)
    mark("done")


def main() -> None:
    folder = Path(__file__).resolve().parent
    out = folder / "out"
    out.mkdir(exist_ok=True)
    state: dict[str, Any] = {}

    def mark(phase: str) -> None:
        state["phase"] = phase
        temporary = out / "result.json.new"
        temporary.write_text(json.dumps(state))
        temporary.replace(out / "result.json")

    try:
        run(json.loads((folder / "request.json").read_text()), state, mark, out)
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
