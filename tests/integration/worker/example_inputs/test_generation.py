"""The decode step that is compiled is the call that plain `generate()` makes after the prefill."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from compilewatch.records import Request, Target
from compilewatch.worker.example_inputs.variants import decode_step
from compilewatch.worker.subject import Subject
from tests import factories
from tests.integration.worker.example_inputs.conftest import SIZES, TOKENS, Make, tiny
from tests.integration.worker.example_inputs.test_rules import llava

pytestmark = [pytest.mark.torch, pytest.mark.matrix]

Arguments = list[tuple[str, type, object]]


def described(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Name, type, and shape or plain value of each argument, in the order of the call."""
    named = {str(i): value for i, value in enumerate(args)} | kwargs
    return [
        (name, type(value), (value.shape, value.dtype))
        if isinstance(value, torch.Tensor)
        else (name, type(value), value if isinstance(value, bool | int) else None)
        for name, value in named.items()
    ]


def plain_calls(module: Any, inputs: dict[str, Any]) -> list[Arguments]:
    """What `generate()` calls the forward with, in plain Transformers."""
    calls: list[Arguments] = []
    forward = module.forward

    @functools.wraps(forward)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        calls.append(described(args, kwargs))
        return forward(*args, **kwargs)

    module.forward = recorded
    module.generate(**inputs, max_new_tokens=8, do_sample=False)
    del module.forward
    return calls


def mamba() -> nn.Module:
    return tiny("MambaForCausalLM", **SIZES, **TOKENS, state_size=4)


@pytest.mark.parametrize("build", [mamba, llava], ids=["state space", "image and text"])
def test_a_decode_step_is_the_second_call_of_plain_generate(
    build: Any, make: Make, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    module: Any = build().eval()
    module.generation_config.eos_token_id = None
    inputs = make(module)
    prefill, step, *_ = plain_calls(module, inputs.kwargs)
    subject = Subject(
        request=Request(model=factories.spec("model"), target=Target(), key="key"),
        module=module,
        inputs=inputs,
        fake_mode=None,
        artifacts=tmp_path,
        enter=lambda _: None,
    )
    compiled = decode_step(subject, cache="dynamic")
    assert compiled.module is module
    assert described(compiled.inputs.args, compiled.inputs.kwargs) == step != prefill
