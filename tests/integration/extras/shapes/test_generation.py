"""What generating text compiles is what plain PyTorch compiles, in each way to compile it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from compilewatch.extras.shapes.worker import generation
from compilewatch.records import Request, Target, Tier
from compilewatch.sources import make_source
from compilewatch.sources.select import by_name
from compilewatch.worker.example_inputs import make_inputs
from compilewatch.worker.subject import Subject

PROMPTS, TOKENS = (1, 2, 9), 4


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture
def subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    monkeypatch.setattr(generation, "PROMPTS", PROMPTS)
    monkeypatch.setattr(generation, "TOKENS", TOKENS)
    monkeypatch.setattr(generation, "TOKENS_BETWEEN", TOKENS)
    (spec,) = by_name(make_source("library").models, {"LlamaForCausalLM"})
    request = Request(model=spec, target=Target(), key="generation", tier=Tier.REAL)
    module = llama()
    yield Subject(
        request=request,
        module=module,
        inputs=make_inputs(module, request, None),
        fake_mode=None,
        artifacts=tmp_path,
        enter=lambda _: None,
        rebuilt=llama,
    )
    torch._dynamo.reset()


def plainly(cache: str, *, by_itself: bool) -> int:
    """The compilations of a script of plain PyTorch and Transformers."""
    torch._dynamo.reset()
    graphs: list[Any] = []

    def counting(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model: Any = llama()
    model.generation_config.eos_token_id = None
    settings: dict[str, Any] = {"disable_compile": True}
    if by_itself:
        config = transformers.CompileConfig(backend=counting, mode=None)
        config._compile_all_devices = True
        settings = {"compile_config": config}
    else:
        model.forward = torch.compile(model.forward, backend=counting)
    for prompt in PROMPTS:
        model.generate(
            torch.ones(2, prompt, dtype=torch.int64),
            attention_mask=torch.ones(2, prompt, dtype=torch.int64),
            max_new_tokens=TOKENS,
            do_sample=False,
            cache_implementation=cache,
            **settings,
        )
    return len(graphs)


def test_generating_compiles_as_often_as_in_plain_pytorch(subject: Subject) -> None:
    """Only real compilations show it: of 12 tokens, in three ways, twice (half a minute)."""
    series = generation.generation(subject)
    assert [one.compilations for one in series.values()] == [
        plainly("dynamic", by_itself=False),
        plainly("static", by_itself=False),
        plainly("static", by_itself=True),
    ]
    by_user, _, by_generate = series.values()
    assert [call.sizes for call in by_user.calls] == [
        {"prompt": prompt, "step": step} for prompt in PROMPTS for step in range(TOKENS)
    ]
    assert {call.sizes["step"] for call in by_generate.calls} == {1, 2, 3}
    assert [call.sizes for call in by_generate.calls if call.compiled] == [
        {"prompt": 1, "step": 1},
        {"prompt": 2, "step": 1},
    ]
    assert not any(call.error for one in series.values() for call in one.calls)
