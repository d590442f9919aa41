"""Writes a script of plain PyTorch that shows a model's verdict without compilewatch.

It builds the model as the real tier does (reduced size, seeded), so that the script runs on any
machine; configuration and inputs are spelled out in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from compilewatch.contract.targets import target_label
from compilewatch.records import ConfigBuild, FactoryBuild, Mode, Request
from compilewatch.worker.example_inputs import make_inputs
from compilewatch.worker.model.overrides import load_overrides
from compilewatch.worker.model.resolve import build_model
from compilewatch.worker.subject import ExampleInputs

LITERAL_ELEMENTS = 4096
"""Integer and boolean tensors up to this many elements are spelled out: their values matter."""

EXPLAIN = """
explanation = torch._dynamo.explain(model)(*args, **kwargs)
print(f"graphs: {explanation.graph_count}, breaks: {explanation.graph_break_count}")
for reason in explanation.break_reasons:
    print(reason.reason)
print("unimplemented:", dict(torch._dynamo.utils.counters["unimplemented"]))

torch._dynamo.reset()
try:
    torch.compile(model, fullgraph=True, backend="eager"DYNAMIC)(*args, **kwargs)
    print("fullgraph: accepted")
except Exception as error:
    print(f"fullgraph: refused: {type(error).__name__}: {error}")
"""

TRAIN = """
torch._dynamo.reset()
output = torch.compile(model, backend="aot_eager"DYNAMIC)(*args, **kwargs)
loss = getattr(output, "loss", None)
if loss is None:
    values = output.values() if hasattr(output, "values") else [output]
    loss = sum(v.mean() for v in values if torch.is_tensor(v) and v.requires_grad)
loss.backward()
print("backward: captured")
"""


def tensor_source(tensor: torch.Tensor) -> str:
    """Python source of one tensor: exact for small integers, seeded noise for floats."""
    shape, dtype = tuple(tensor.shape), str(tensor.dtype)
    if tensor.is_floating_point() or tensor.is_complex():
        return f"torch.randn({shape}, dtype={dtype})"
    if tensor.numel() and bool((tensor == tensor.flatten()[0]).all()):
        return f"torch.full({shape}, {tensor.flatten()[0].item()}, dtype={dtype})"
    if tensor.numel() <= LITERAL_ELEMENTS:
        return f"torch.tensor({tensor.tolist()}, dtype={dtype})"
    high = int(tensor.max()) + 1
    return f"torch.randint({int(tensor.min())}, {high}, {shape}, dtype={dtype})"


def value_source(value: Any) -> str:
    """Python source of one argument; raises TypeError for what cannot be spelled out."""
    if isinstance(value, torch.Tensor):
        return tensor_source(value)
    if isinstance(value, list | tuple):
        inner = ", ".join(value_source(item) for item in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {value_source(v)}" for k, v in value.items()) + "}"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    raise TypeError(f"cannot write a {type(value).__name__} as source")


def inputs_source(inputs: ExampleInputs) -> str:
    """`args = (…)` and `kwargs = {…}`, one argument a line."""
    lines = ["args = ("]
    lines += [f"    {value_source(value)}," for value in inputs.args]
    lines += [")", "kwargs = {"]
    lines += [f"    {name!r}: {value_source(value)}," for name, value in inputs.kwargs.items()]
    return "\n".join([*lines, "}"])


def model_source(request: Request, module: torch.nn.Module, config: Any) -> list[str]:
    """Lines that build the model: its class with its configuration, or the factory's call."""
    build = request.model.build
    if isinstance(build, FactoryBuild):
        module_name, _, function = build.factory.partition(":")
        path = [f"sys.path.insert(0, {build.path!r})"] if build.path else []
        return [
            "import sys",
            *path,
            f"from {module_name} import {function}",
            f"model = {function}()",
        ]
    if config is None:
        return [
            f"from {type(module).__module__} import {type(module).__name__}",
            f"model = {type(module).__name__}()",
        ]
    if isinstance(build, ConfigBuild) and (build.weights or build.trust_remote_code):
        options = f"revision={request.model.revision!r}"
        options += ", trust_remote_code=True" if build.trust_remote_code else ""
        return [f"model = {type(module).__name__}.from_pretrained({build.repo!r}, {options})"]
    settings = json.loads(config.to_json_string(use_diff=True))
    if type(config).from_dict(settings).to_dict() != config.to_dict():
        settings = json.loads(config.to_json_string(use_diff=False))
    text = json.dumps(settings, indent=2)
    return [
        f"from {type(config).__module__} import {type(config).__name__}",
        f"from {type(module).__module__} import {type(module).__name__}",
        "",
        f"config = {type(config).__name__}.from_dict(json.loads(r'''{text}'''))",
        f"model = {type(module).__name__}(config)",
    ]


def script(request: Request) -> str:
    """The whole script for one request (its tier should be `real`)."""
    overrides = load_overrides(Path(request.overrides_dir) if request.overrides_dir else None)
    built = build_model(request, None, overrides)
    inputs = make_inputs(built.module, built.config, request, overrides, None)
    train = request.target.mode is Mode.TRAIN
    body = EXPLAIN + (TRAIN if train else "")
    dynamic = ", dynamic=True" if request.target.dynamic else ""
    title = f"{request.model.name} on {target_label(request.target)}"
    lines = [
        f'"""{title}, in plain PyTorch {torch.__version__}."""',
        "",
        "import json",
        "",
        "import torch",
        "import torch._dynamo",
        "",
        "torch.manual_seed(0)",
        *model_source(request, built.module, built.config),
        "model.train()" if train else "model.eval().requires_grad_(False)",
        "",
        inputs_source(inputs),
        body.replace("DYNAMIC", dynamic),
    ]
    return "\n".join(lines)
