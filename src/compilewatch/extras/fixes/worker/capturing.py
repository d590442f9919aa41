"""What Dynamo does with a model under a fix, and what the fix leaves behind: the fourth part."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.utils import counters

from compilewatch.extras.fixes.worker.comparing import Outcome, restored_globals
from compilewatch.extras.fixes.worker.script_calls import (
    CALLS,
    SHAPES,
    ScriptCall,
    ScriptSubject,
    Step,
    arguments,
)


class Breaks(logging.Handler):
    """Counts graph breaks in PyTorch's structured trace; its counters leave out branches."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        artifact = getattr(record, "metadata", {}).get("artifact", {})
        self.count += artifact.get("name") == "dynamo_graph_break_reason"


def captured(subject: ScriptSubject, *, calls: int) -> dict[str, int]:
    """Return what Dynamo captures of the model as it is, and what it compiles in so many calls."""
    return counted(subject, subject.unchanged, calls)[0]


def counted(
    subject: ScriptSubject, fix: Callable[..., Any], calls: int = len(CALLS)
) -> tuple[dict[str, int], list[Outcome]]:
    """Return what is captured and compiled in calls of a model, and what each call did.

    `operators` are those that graphs run: one graph may serve several layers. `late` are calls of a
    shape that was seen before in which Dynamo compiled something again.
    """
    torch._dynamo.reset()
    counters.clear()
    operators = 0

    def backend(module: Any, _: Any) -> Any:
        graphs = [each.graph for each in module.modules() if hasattr(each, "graph")]
        held = sum(node.op.startswith("call_") for graph in graphs for node in graph.nodes)

        def run(*values: Any) -> Any:
            nonlocal operators
            operators += held
            return module.forward(*values)

        return run

    breaks = Breaks(logging.DEBUG)
    logging.getLogger("torch.__trace").addHandler(breaks)
    calling = ScriptCall(subject, subject.build(0), fix, backend)
    stats, frames = counters["stats"], counters["frames"]
    found, outcomes = {"late": 0}, []
    with restored_globals(calling.model):
        for number, (shape, seed) in enumerate(CALLS[:calls]):
            before = stats["unique_graphs"]
            outcomes.append(calling(*arguments(subject, shape, seed), seed=number))
            if number == 0:
                # Dynamo gives up a frame without a graph break where it meets an unknown size.
                found["breaks"] = breaks.count + frames["total"] - frames["ok"]
                found |= {"graphs": stats["unique_graphs"], "operators": operators}
            found["late"] += number >= len(SHAPES) and stats["unique_graphs"] > before
    found["compilations"] = stats["unique_graphs"]
    return found, outcomes


def left_behind(subject: ScriptSubject) -> Step:
    """Whether the fix ends with its context: settings and functions of PyTorch are as before."""

    def settings() -> dict[str, Any]:
        owners = (torch, torch.nn.functional, torch.Tensor, torch.nn.Module)
        functions = {
            f"{owner.__name__}.{name}": id(value)
            for owner in owners
            for name, value in vars(owner).items()
            if callable(value)
        }
        config = {
            f"torch._dynamo.config.{name}": value
            for name, value in torch._dynamo.config.get_config_copy().items()
        }
        others = {"grad mode": torch.is_grad_enabled(), "dtype": torch.get_default_dtype()}
        return functions | config | others

    model = subject.build(0)
    model_args, model_kwargs = arguments(subject, SHAPES[0], 0)
    before = settings()
    with subject.compilable(model, model_args, model_kwargs, {}):
        pass
    after = settings()
    changed = [name for name, value in before.items() if after.get(name) != value]
    return not changed, f"{changed[0]} stays changed" if changed else ""
