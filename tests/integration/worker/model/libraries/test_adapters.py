"""PEFT adapters on a model of Transformers, made from both configurations without weights."""

import json
from pathlib import Path
from typing import Any

import pytest

from compilewatch.records import ConfigBuild, Depth, Mode, ModelSpec, Result, Status, Tier
from tests.integration.worker.model.conftest import evaluated

pytestmark = [pytest.mark.torch, pytest.mark.libraries, pytest.mark.matrix]

TINY: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 6,
}
TINY |= {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 128}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2}
OF_TEXT = {"task_type": "CAUSAL_LM", "inference_mode": True}
LORA: dict[str, Any] = {
    "peft_type": "LORA",
    "base_model_name_or_path": "org/base",
    "r": 4,
    "lora_alpha": 8,
}
LORA |= {"target_modules": ["q_proj", "v_proj"], **OF_TEXT}
ADAPTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "lora": LORA,
    # Of layers that a reduced model lacks, initialised from weights that are not there.
    "some-layers": LORA | {"layers_to_transform": [4, 5], "init_lora_weights": "pissa"},
    # A field of a later release.
    "dora": LORA | {"use_dora": True, "of_a_later_release": 1},
    "prompt": {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 5, **OF_TEXT},
}


def adapted(folder: Path, names: list[str], **fields: Any) -> dict[str, Result]:
    specs = []
    for name in names:
        for file, values in (("config", TINY), (name, ADAPTERS[name])):
            (folder / f"{file}.json").write_text(json.dumps(values))
        build = ConfigBuild(
            config_file=str(folder / "config.json"),
            config_sha256="",
            class_name="LlamaForCausalLM",
            adapter_file=str(folder / f"{name}.json") if name != "none" else None,
        )
        specs.append(ModelSpec(source="hub", name=name, build=build, family="llama"))
    (folder / "scratch").mkdir()
    results = evaluated(specs, "libraries", folder / "scratch", **fields)
    for result in results:
        assert result.status in (Status.PASS, Status.GRAPH_BREAK), result.detail
    return {result.request.model.name: result for result in results}


# Only PEFT itself shows that its layers are built on fake tensors; a worker takes a few seconds.
@pytest.mark.parametrize("tier", [Tier.FAKE, Tier.REAL])
def test_base_and_adapter_are_captured_together(tmp_path: Path, tier: Tier) -> None:
    results = adapted(tmp_path, list(ADAPTERS), tier=tier)
    base = results.pop("none")
    for name, result in results.items():
        assert result.depth is Depth.REDUCED
        assert (result.parameters or 0) > (base.parameters or 0), name
        assert (result.ops or 0) > (base.ops or 0), name


# Only training shows that parameters of the adapter have gradients.
def test_an_adapter_is_trained_in_train_mode(tmp_path: Path) -> None:
    assert adapted(tmp_path, ["lora"], mode=Mode.TRAIN)
