"""What the script that confirms a plan consists of: plain PyTorch, of which the worker uses parts.

`script` writes the text of this module into the script, with functions of `fixes` that compare
results.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
import torch._dynamo
from torch.utils._pytree import tree_map_only

from compilewatch.extras.fixes.worker.verifying import leaves, loss_of, size_of, words_of

Follows = Mapping[int | str, Mapping[int, tuple[int, Mapping[str, int]]]]
"""How the sizes of tensors follow from those that are served: for each argument, by its position or
name, and each of its dimensions, a constant and a factor for each size."""

Sizes = dict[str, int]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]

TOLERANCE = 5e-5
"""How far values may differ, as a share of the largest one: rounding of float32."""

SLOW_SECONDS = 4.0
"""Results are not compared where a call would take longer."""


def sized(value: torch.Tensor, dimension: int, size: int) -> torch.Tensor:
    """Repeat samples, or the last entry of another dimension; or cut what is too much."""
    before = value.shape[dimension]
    picks = torch.arange(size, device=value.device)
    picks = picks % max(before, 1) if dimension == 0 else picks.clamp(max=before - 1)
    return value.detach().index_select(dimension, picks).requires_grad_(value.requires_grad)


def resized(arguments: Arguments, follows: Follows, sizes: Mapping[str, int]) -> Arguments:
    """Return arguments whose tensors have the sizes that follow from those that are served."""
    args, kwargs = list(arguments[0]), dict(arguments[1])
    for key, dimensions in follows.items():
        holder: Any = args if isinstance(key, int) else kwargs
        for dimension, rule in dimensions.items():
            size = size_by(rule, sizes)
            if holder[key].shape[dimension] != size:
                holder[key] = sized(holder[key], dimension, size)
    return tuple(args), kwargs


def size_by(rule: tuple[int, Mapping[str, int]], sizes: Mapping[str, int]) -> int:
    constant, factors = rule
    return constant + sum(factor * sizes[name] for name, factor in factors.items())


# --- the proof ------------------------------------------------------------------------------------


class Proof:
    """A model, its inputs, and the plan, as three functions that are in the script.

    `warm_up(compiled, inputs)` makes the first calls, and `serve(compiled, *args, **kwargs)` every
    other one. `compared` are the sizes for which results are compared.
    """

    def __init__(
        self,
        build: Callable[[], torch.nn.Module],
        inputs: Callable[..., Arguments],
        plan: tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]],
        *,
        ranges: Mapping[str, Sequence[int]],
        compared: Sequence[Sizes],
    ) -> None:
        self.build, self.inputs = build, inputs
        self.compile, self.warm_up, self.serve = plan
        self.ranges, self.compared = ranges, compared

    def sample(self, number: int) -> Iterator[Sizes]:
        """Yield random sizes of the range, small ones as often as large ones."""
        draw = random.Random(0)
        for _ in range(number):
            sizes = {}
            for name, values in self.ranges.items():
                largest = max(1, draw.randint(1, len(values).bit_length()))
                sizes[name] = values[draw.randrange(min(len(values), 2**largest))]
            yield sizes

    def count(self, device: str) -> dict[str, Any]:
        """Count what a random sample compiles, on a device: `meta` computes no values."""
        model = self.build().to(device)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compiled, calls = self.compile(model, backend="eager"), 0

        def inputs(**sizes: int) -> Arguments:
            arguments: Arguments = tree_map_only(
                torch.Tensor, lambda tensor: tensor.to(device), self.inputs(**sizes)
            )
            return arguments

        with torch.no_grad():
            self.warm_up(compiled, inputs)
            first = graphs()
            for sizes in self.sample(60):
                args, kwargs = inputs(**sizes)
                if device != "meta" and elements((args, kwargs)) > 2**18:
                    continue
                self.serve(compiled, *args, **kwargs)
                calls += 1
        return {"sample": calls, "graphs": [first, graphs()]}

    def compare(self) -> dict[str, Any]:
        """Compare outputs and gradients with eager mode, and count what that compiles."""
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        eager, model = self.build(), self.build()
        compiled = self.compile(model, backend="aot_eager")
        self.warm_up(compiled, self.inputs)
        self.warm_up(eager, self.inputs)
        first, differences, made, late = graphs(), [], [], []
        speed = 0.0  # seconds for an element of the inputs
        for sizes in sorted(self.compared, key=lambda sizes: elements(self.inputs(**sizes))):
            amount = elements(self.inputs(**sizes))
            if speed * amount > SLOW_SECONDS:
                late.append(sizes)
                continue
            began = time.process_time()

            def served(*args: Any, **kwargs: Any) -> Any:
                return self.serve(compiled, *args, **kwargs)

            try:
                expected = outcome(eager, eager, self.inputs(**sizes))
                speed = (time.process_time() - began) / max(amount, 1024)
                got = outcome(model, served, self.inputs(**sizes))
            except RuntimeError as error:
                if "allocate memory" not in str(error):
                    raise
                late.append(sizes)
                speed = float("inf")  # larger ones need more
                continue
            made.append(sizes)
            if detail := difference_of(expected, got):
                differences.append([sizes, detail])
        return {
            "graphs": [first, graphs()],
            "compared": made,
            "differences": differences,
            "late": late,
        }


def elements(value: Any) -> int:
    return sum(leaf.numel() for _, leaf in leaves(value, "") if isinstance(leaf, torch.Tensor))


def graphs() -> int:
    """Return how many graphs Dynamo has compiled, by its own counter.

    Raises RuntimeError where a function runs in eager mode, at the limit of recompilations.
    """
    counters = torch._dynamo.utils.counters
    for reason in (*counters["graph_break"], *counters["unimplemented"]):
        if "recompile_limit" in reason:
            raise RuntimeError(f"eager mode at the limit of recompilations: {reason[:200]}")
    return int(counters["stats"]["unique_graphs"])


def outcome(
    model: torch.nn.Module, call: Callable[..., Any], arguments: Arguments
) -> dict[str, Any]:
    """Return the outputs of a call and the gradients of the parameters, by their names."""
    torch.manual_seed(0)
    model.zero_grad(set_to_none=True)
    args, kwargs = arguments
    output = call(*args, **kwargs)
    loss = loss_of(output)
    if loss is not None and loss.requires_grad:
        loss.backward()
    values = dict(leaves(output, "output"))
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    if any(value.grad is not None for value in parameters.values()):
        for name, value in parameters.items():  # compiled code has zeros in place of None
            gradient = torch.zeros_like(value) if value.grad is None else value.grad
            values[f"gradient of {name}"] = gradient
    return {k: v.detach() if torch.is_tensor(v) else v for k, v in values.items()}


def difference_of(expected: dict[str, Any], got: dict[str, Any]) -> str:
    """Return the first difference; gradients are compared at the scale of the steepest one."""
    gradients = [value for name, value in expected.items() if name.startswith("gradient")]
    steepest = max(map(size_of, gradients), default=0.0)
    for name in dict.fromkeys([*expected, *got]):
        if name not in got or name not in expected:
            return f"{name} is {'missing' if name in expected else 'new'}"
        scale = steepest if name.startswith("gradient") else size_of(expected[name])
        if detail := unequal(expected[name], got[name], scale):
            return f"{name} {detail}"
    return ""


def unequal(ours: Any, theirs: Any, scale: float) -> str:
    """Return how two values differ by more than rounding at this scale; empty if they do not."""
    if not torch.is_tensor(ours) or not torch.is_tensor(theirs):
        return "" if repr(ours) == repr(theirs) else f"is {theirs!r}, not {ours!r}"[:200]
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"is {theirs.dtype} {tuple(theirs.shape)}, not {ours.dtype} {tuple(ours.shape)}"
    if torch.equal(ours, theirs):
        return ""
    if not ours.is_floating_point():
        return f"differs in {int((ours != theirs).sum())} of {ours.numel()} elements"
    apart = float((ours.nan_to_num(7e7) - theirs.nan_to_num(7e7)).abs().max())
    return (
        "" if apart <= TOLERANCE * scale else f"differs by {apart:.3g}, at a scale of {scale:.3g}"
    )


def main(proof: Proof) -> int:
    """Count and compare, and print what that gave as a line of JSON; 1 if the plan fails."""
    with contextlib.redirect_stdout(sys.stderr):  # a model may print
        with ProcessPoolExecutor(1, get_context("fork")) as other:
            counting = other.submit(proof.count, "meta")
            try:
                compared = proof.compare()
            except Exception as error:  # noqa: BLE001  (of the compiler or the model)
                traceback.print_exc()
                sys.exit(words_of(error))
        failed = counting.exception()
        counted: dict[str, Any] = {"graphs": []} if failed else counting.result()
        if counted["graphs"] != compared["graphs"]:  # some operators branch on the CPU alone
            print(f"not on meta tensors: {failed or counted}", file=sys.stderr)
            counted = proof.count("cpu")
    both = compared["graphs"] + counted["graphs"]
    print(json.dumps(compared | counted | {"graphs": both}))
    return int(len(set(both)) > 1 or bool(compared["differences"]))
