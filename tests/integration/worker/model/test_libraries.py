"""Models of other libraries, adapters of PEFT and classes of further packages.

Only the libraries themselves show that their models are built, called and made shallow as
worker/model expects. One server of an environment evaluates all of them.
"""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from compilewatch import records
from compilewatch.api.choose import call_worker
from compilewatch.config import load_settings
from compilewatch.contract.messages import Script
from compilewatch.data import OVERRIDES, package_classes
from compilewatch.environments import Environments
from compilewatch.errors import ConfigError
from compilewatch.records import Depth, LibraryBuild, Mode, Result, Status, Tier
from compilewatch.sources.libraries import configurations
from compilewatch.sources.transformers import Resolver, read_library
from compilewatch.worker.model.libraries import library
from tests import factories
from tests.integration.worker.model.conftest import Evaluate

pytestmark = pytest.mark.torch

LISTS = {
    "timm": ("resnet152", "vit_tiny_patch16_224"),
    "torchvision": ("mobilenet_v3_small", "fcn_resnet50", "r3d_18", "raft_small"),
    "diffusers": (
        *("UNet2DConditionModel", "AutoencoderKL", "FluxTransformer2DModel", "ControlNetModel"),
        *("ZImageControlNetModel", "RFD4ProteinaTransformer"),
    ),
    "sentence-transformers": ("all-MiniLM-L6-v2", "LaBSE"),
    "open_clip": ("ViT-B-32", "ViT-B-32:text", "roberta-ViT-B-32"),
}


def spec(of: str, name: str, file: Path | None = None, called: str = "") -> records.ModelSpec:
    build = LibraryBuild(library=of, name=name, configuration=str(file) if file else None)
    return factories.spec(called or f"{of}/{name}", build=build)


def by_name(results: list[Result]) -> dict[str, Result]:
    """The results by model. Each has operations, and a tensor reached the model."""
    for result in results:
        assert result.ops, result.request.model.name
        assert any(summary.shape for summary in result.inputs)
    return {result.request.model.name: result for result in results}


@pytest.mark.libraries
@pytest.mark.matrix
@pytest.mark.parametrize("of", LISTS)
def test_models_by_name(evaluate: Evaluate, of: str) -> None:
    models = [spec(of, name, configurations().get(name)) for name in LISTS[of]]
    results = by_name(evaluate("libraries", *models))
    assert results.keys() == {model.name for model in models}
    if of == "timm":  # of 60 million with all 50 blocks
        assert (results["timm/resnet152"].parameters or 0) in range(1, 30_000_000)


UNET: dict[str, Any] = {"_class_name": "UNet2DModel", "in_channels": 5, "out_channels": 5}
UNET |= {"block_out_channels": [32, 64], "down_block_types": ["DownBlock2D", "DownBlock2D"]}
UNET |= {"up_block_types": ["UpBlock2D", "UpBlock2D"]}
CLIP: dict[str, Any] = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 64, "layers": 3, "width": 64, "patch_size": 32},
    "text_cfg": {"vocab_size": 500, "width": 64, "heads": 2, "layers": 3},
}
RESNET: dict[str, Any] = {
    "num_classes": 7,
    "pretrained_cfg": {"input_size": [3, 96, 96], "num_classes": 7},
}
CONFIGURATIONS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "timm": ("resnet18", RESNET, (2, 3, 96, 96)),
    "diffusers": ("UNet2DModel", UNET, (2, 5, 16, 16)),
    "open_clip": ("a/repository", {"model_cfg": CLIP}, (2, 3, 64, 64)),
}
"""Library -> a model, the configuration that a repository has of it, and the shape of its input."""


@pytest.mark.libraries
@pytest.mark.matrix
def test_the_configuration_of_a_repository_decides(tmp_path: Path, evaluate: Evaluate) -> None:
    models = []
    for of, (name, values, _) in CONFIGURATIONS.items():
        file = tmp_path / f"{of}.json"
        file.write_text(json.dumps(values))
        models.append(spec(of, name, file, of))
    results = by_name(evaluate("libraries", *models, depth=Depth.FULL))
    shapes = {name: result.inputs[0].shape for name, result in results.items()}
    assert shapes == {of: shape for of, (_, _, shape) in CONFIGURATIONS.items()}


def test_an_incomplete_configuration_of_open_clip_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", ModuleType("open_clip"))
    path = tmp_path / "open_clip_config.json"
    path.write_text('{"model_cfg": {"vision_cfg": {"layers": 1}, "text_cfg": {}}}')
    build = LibraryBuild(library="open_clip", name="a/clip", configuration=str(path))
    with pytest.raises(ConfigError, match=f"a/clip: .* lacks embed_dim, text_cfg: complete {path}"):
        library("open_clip").constructor(build, Depth.FULL)


@pytest.mark.libraries
@pytest.mark.matrix
def test_a_script_of_plain_pytorch_builds_the_model_and_finds_the_same(tmp_path: Path) -> None:
    """A worker writes it, with the lines by which it builds every model of a library."""
    request = factories.request(
        build=LibraryBuild(library="diffusers", name="MultiAdapter"),
        target=records.Target(environment="libraries"),
        depth=Depth.REDUCED,
    )
    environments = Environments(load_settings().cache_folder)
    text = call_worker(environments, "reproduce", request, Script).text
    assert "compilewatch" not in text
    python = environments.interpreter("libraries").path
    ended = subprocess.run([python, "-"], input=text.encode(), cwd=tmp_path, capture_output=True)
    assert ended.returncode == 0, ended.stderr.decode()[-500:]


@pytest.mark.vision
@pytest.mark.matrix
def test_a_detector_gets_images_of_its_own_and_in_train_mode_boxes(evaluate: Evaluate) -> None:
    detector = spec("torchvision", "ssdlite320_mobilenet_v3_large")
    (result,) = evaluate("vision", detector, mode=Mode.TRAIN)
    assert {"images[0]", "targets[0].boxes"} <= {summary.name for summary in result.inputs}


# Only timm itself shows that its builder is called as `one_block_of_each_kind` expects.
@pytest.mark.vision
@pytest.mark.matrix
def test_reduced_depth_keeps_few_blocks_of_a_tower(evaluate: Evaluate) -> None:
    # With all 84 blocks of the tower: 2,056 million parameters and 2,602 operations; with all 24
    # blocks of a Transformer: 498 million parameters and 1,188 operations.
    limits = {"Gemma3nModel": (1_900_000_000, 1_500), "PeVideoModel": (250_000_000, 400)}
    for result in evaluate("vision", *map(factories.spec, limits), tier=Tier.FAKE):
        parameters, ops = limits[result.request.model.name]
        # At its first call, Transformers installs hooks for outputs behind a lock.
        assert result.status is Status.GRAPH_BREAK
        assert (result.parameters or parameters) < parameters
        assert (result.ops or ops) < ops


# --- adapters of PEFT, and classes that other packages derive from those of Transformers ----------

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


@pytest.fixture
def adapted(tmp_path: Path) -> dict[str, records.ModelSpec]:
    """The base model without an adapter, and with each."""
    models = {}
    for name, values in ADAPTERS.items():
        for file, content in (("config", TINY), (name, values)):
            (tmp_path / f"{file}.json").write_text(json.dumps(content))
        build = records.ConfigBuild(
            config_file=str(tmp_path / "config.json"),
            config_sha256="",
            class_name="LlamaForCausalLM",
            adapter_file=str(tmp_path / f"{name}.json") if name != "none" else None,
        )
        models[name] = factories.spec(name, build=build, family="llama")
    return models


@pytest.mark.libraries
@pytest.mark.matrix
@pytest.mark.parametrize("tier", [Tier.FAKE, Tier.REAL])
def test_base_and_adapter_are_captured_together(
    adapted: dict[str, records.ModelSpec], evaluate: Evaluate, tier: Tier
) -> None:
    results = by_name(evaluate("libraries", *adapted.values(), tier=tier))
    base = results.pop("none")
    for name, result in results.items():
        assert result.depth is Depth.REDUCED
        assert (result.parameters or 0) > (base.parameters or 0), name
        assert (result.ops or 0) > (base.ops or 0), name
    # Its parameters have gradients in train mode.
    if tier is Tier.FAKE:
        assert evaluate("libraries", adapted["lora"], mode=Mode.TRAIN)


CHRONOS: dict[str, Any] = {"context_length": 512, "input_patch_size": 16, "input_patch_stride": 16}
CHRONOS |= {"prediction_length": 64, "quantiles": [0.1, 0.5, 0.9], "use_reg_token": True}
BOLT: dict[str, Any] = {"model_type": "t5", "architectures": ["ChronosBoltModelForForecasting"]}
BOLT |= {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 4}
BOLT |= {"num_decoder_layers": 4, "vocab_size": 2, "feed_forward_proj": "relu"}
BOLT |= {"reg_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0}
BOLT |= {"chronos_config": CHRONOS}


@pytest.mark.libraries
@pytest.mark.matrix
def test_a_class_of_a_package_is_built_and_called_as_its_reviewed_line_says(
    tmp_path: Path, evaluate: Evaluate
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(BOLT))
    resolver = Resolver(read_library(), package_classes(OVERRIDES))
    bolt = resolver.resolve(factories.spec("org/bolt", source="hub"), config, BOLT)
    assert bolt.skip_reason is None
    (result,) = evaluate("libraries", bolt)
    assert {summary.name for summary in result.inputs} == {"context"}
