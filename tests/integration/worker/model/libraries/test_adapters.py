"""PEFT adapters, and classes that other packages derive from those of Transformers."""

import json
from pathlib import Path
from typing import Any

import pytest

from compilewatch.data import OVERRIDES, package_classes
from compilewatch.records import ConfigBuild, Depth, Mode, ModelSpec, Result, Status, Tier
from compilewatch.sources.transformers import Resolver, read_library
from tests import factories
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


CHRONOS: dict[str, Any] = {"context_length": 512, "input_patch_size": 16, "input_patch_stride": 16}
CHRONOS |= {"prediction_length": 64, "quantiles": [0.1, 0.5, 0.9], "use_reg_token": True}
BOLT: dict[str, Any] = {"model_type": "t5", "architectures": ["ChronosBoltModelForForecasting"]}
BOLT |= {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 4}
BOLT |= {"num_decoder_layers": 4, "vocab_size": 2, "feed_forward_proj": "relu"}
BOLT |= {"reg_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0}
BOLT |= {"chronos_config": CHRONOS}


# Only the package itself shows that its class is built from Transformers' configuration.
@pytest.mark.torch
@pytest.mark.libraries
@pytest.mark.matrix
def test_a_class_of_a_package_is_built_and_called_as_its_reviewed_line_says(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(BOLT))
    resolver = Resolver(read_library(), package_classes(OVERRIDES))
    spec = resolver.resolve(factories.spec("org/bolt", source="hub"), config, BOLT)
    assert spec.skip_reason is None
    (result,) = evaluated([spec], "libraries", tmp_path)
    assert result.status in (Status.PASS, Status.GRAPH_BREAK), result.detail
    assert {each.name for each in result.inputs} == {"context"}
