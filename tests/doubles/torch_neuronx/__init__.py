"""A double of torch_neuronx 2.9: `trace` with its documented signature.

Documented surface: Neuron SDK 2.32.0, frameworks/torch/torch-neuronx/api-reference-guide/inference.
It lowers nothing: what goes to neuronx-cc (found on PATH, as the real one does) is the model's
state by name, shape and dtype. What a trace returns runs the model itself, and only where neuron-ls
finds a device. A module with a buffer `double_call` leads the compiler to the behaviour whose bytes
it holds.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch
from torch import nn

__version__ = "2.9.0.2.15.32035"


class _Compiled(nn.Module):
    """What runs on a NeuronCore; here the model, slightly off, as reordered arithmetic is."""

    def __init__(self, func: Any, off_by: float) -> None:
        super().__init__()
        self.func = func
        self.off_by = off_by

    def forward(self, *inputs: torch.Tensor) -> Any:
        if subprocess.run(["neuron-ls", "-j"], capture_output=True, check=False).returncode:
            raise RuntimeError("The PyTorch Neuron Runtime could not be initialized.")
        with torch.no_grad():
            outputs = self.func(*inputs)
        return tuple(
            value + self.off_by if value.is_floating_point() else value for value in outputs
        )


def _compile(func: Any, workdir: Path, arguments: list[str]) -> None:
    compiler = shutil.which("neuronx-cc")
    if compiler is None:
        raise RuntimeError("neuronx-cc compiler binary does not exist")
    model = workdir / "model"
    (model / "weights").mkdir(parents=True)
    described = [f"{n} {tuple(v.shape)} {v.dtype}" for n, v in func.state_dict().items()]
    for name, value in func.named_buffers():
        if name.endswith("double_call"):
            described.append("double: " + bytes(value.tolist()).decode())
    (model / "graph.hlo").write_text("\n".join(described))
    (model / "weights" / "0.npy").write_bytes(b"weights")
    (model / "metadata.json").write_text('{"model_files": "graph.hlo", "version": "1.0"}')
    command = [compiler, "compile", str(model), "--framework", "XLA"]
    command += [*arguments, "--output", str(workdir / "graph.neff")]
    (workdir / "command.txt").write_text(" ".join(Path(word).name for word in command))
    status = subprocess.run(command, check=False).returncode
    if status:
        raise RuntimeError(f"neuronx-cc failed with {status}")


def trace(
    func: Any,
    example_inputs: Any,
    *_: Any,
    input_output_aliases: dict[Any, int] = {},  # noqa: B006
    compiler_workdir: str | Path | None = None,
    compiler_args: list[str] | str | None = None,
    partitioner_config: Any = None,
    inline_weights_to_neff: bool = True,
    cpu_backend: bool = False,
) -> Any:
    """Keyword arguments only after the example inputs; static shapes; CPU tensors."""
    if _:
        raise RuntimeError("arguments after example_inputs are keywords")
    arguments = compiler_args.split() if isinstance(compiler_args, str) else compiler_args or []
    if cpu_backend and "--target" not in arguments:
        raise RuntimeError("cpu_backend=True needs --target in compiler_args")
    have_device = not subprocess.run(["neuron-ls", "-j"], capture_output=True).returncode
    if not cpu_backend and not have_device:
        raise RuntimeError("The PyTorch Neuron Runtime could not be initialized.")
    assert isinstance(example_inputs, tuple | torch.Tensor), type(example_inputs)
    inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    assert all(isinstance(value, torch.Tensor) for value in inputs), inputs
    outputs = func(*inputs)
    if not isinstance(outputs, torch.Tensor | tuple | list | dict):
        raise RuntimeError(f"Unsupported output type: {type(outputs)}")
    assert compiler_workdir is not None
    _compile(func, Path(compiler_workdir), arguments)
    return _Compiled(func, float(os.environ.get("NEURON_DOUBLE_OFF_BY", "1e-6")))
