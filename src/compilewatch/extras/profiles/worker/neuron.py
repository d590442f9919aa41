"""Profiles training steps on a NeuronCore with torch_neuronx, in named blocks.

API: Neuron SDK 2.32, `torch_neuronx.experimental.profiler`, and `torch_xla.debug.profiler`. What a
view shows by name are the blocks `model_build`, `loss_backward` and `optimizer_step`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch

from compilewatch.errors import CompilerError
from compilewatch.extras.profiles.infer.messages import CapturedProfile, NeuronCapture
from compilewatch.worker.example_inputs import make_inputs
from compilewatch.worker.model.overrides import overrides_of
from compilewatch.worker.model.resolve import build_model
from compilewatch.worker.subject import ExampleInputs
from compilewatch.worker.targets.dynamo.calls import loss_of
from compilewatch.worker.targets.execution import mapped

EXPERIMENTAL = "torch_neuronx.experimental.profiler"

LEARNING_RATE = 0.01


def api() -> Any:
    """Import the profiler of torch_neuronx. Raises CompilerError that says which SDK has which."""
    if importlib.util.find_spec("torch_neuronx") is None:
        raise CompilerError("this environment has no torch_neuronx: compilewatch env create neuron")
    try:
        return importlib.import_module(EXPERIMENTAL)
    except ImportError:
        newer = hasattr(torch.profiler, "NeuronConfig")
        what = (
            "profiles with torch.profiler and NeuronConfig" if newer else f"has no {EXPERIMENTAL}"
        )
        raise CompilerError(
            f"this SDK {what}, which compilewatch does not drive: capture the model's NEFF with "
            "`compilewatch profile neuron capture FILE.neff`"
        ) from None


def captured(content: bytes) -> CapturedProfile:
    """Train for some steps inside of the profiler's context. Raises CompilerError.

    `content` is a `NeuronCapture` as JSON.
    """
    order = msgspec.json.decode(content, type=NeuronCapture)
    profiler = api()
    overrides = overrides_of(order.request)
    torch.manual_seed(0)
    built = build_model(order.request, None, overrides)
    built.module.train()
    inputs = make_inputs(built.module, built.config, order.request, overrides, None)
    folder = Path(order.neuron_tensorboard_plugin_dir)
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.rglob("*"))
    with profiler.profile(
        port=order.port,
        profile_type=order.profile_type,
        ms_duration=order.ms_duration,
        neuron_tensorboard_plugin_dir=order.neuron_tensorboard_plugin_dir,
        delete_working=order.delete_working,
    ):
        # The model is moved to the device in here: what was moved before would not be recorded.
        blocks = _train(built.module, inputs, order.steps)
    files = sorted(path for path in set(folder.rglob("*")) - before if path.is_file())
    if not files:
        raise CompilerError(
            f"the profiler wrote nothing into {folder}: raise --ms-duration, and unset the "
            "variables NEURON_RT_INSPECT_*, which exclude it"
        )
    return CapturedProfile(
        api=EXPERIMENTAL,
        steps=order.steps,
        blocks=blocks,
        files=tuple(path.relative_to(folder).as_posix() for path in files),
    )


def _train(module: torch.nn.Module, inputs: ExampleInputs, steps: int) -> dict[str, int]:
    """Train in named blocks, and return how often each has run."""
    import torch_xla.core.xla_model as xm

    profiler: Any = importlib.import_module("torch_xla.debug.profiler")
    ran: Counter[str] = Counter()

    @contextmanager
    def block(name: str) -> Iterator[None]:
        with profiler.Trace(name):
            yield
        ran[name] += 1

    device = xm.xla_device()
    module = module.to(device)
    placed = mapped(inputs, lambda tensor: tensor.to(device))
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)
    for number in range(steps):
        with profiler.StepTrace("training_step", step_num=number):
            with block("model_build"):
                optimizer.zero_grad()
                loss = loss_of(module(*placed.args, **placed.kwargs))
            if loss is None:
                raise CompilerError("the model has no output with a gradient")
            with block("loss_backward"):
                loss.backward()
            with block("optimizer_step"):
                optimizer.step()
        xm.mark_step()  # torch_xla rejects it inside of a named block
    xm.wait_device_ops()
    return dict(ran)
