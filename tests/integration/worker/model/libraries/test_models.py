"""A few models of each library, built and captured in the environment that has it.

Only the libraries themselves show that their models are built, called and made shallow as
worker/model/libraries expects; a start of a worker takes more than two seconds.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from compilewatch import records
from compilewatch.api.choose import call_worker
from compilewatch.config import load_settings
from compilewatch.contract.messages import Script
from compilewatch.environments import Environments
from compilewatch.errors import ConfigError
from compilewatch.records import Depth, Mode, Result, Status
from compilewatch.sources import choose_source
from compilewatch.sources.select import by_name
from compilewatch.worker.model.libraries import library
from tests.integration.worker.model.conftest import evaluated

pytestmark = pytest.mark.torch

DETECTOR = "torchvision/ssdlite320_mobilenet_v3_large"
LISTS = {
    "timm": ("resnet152", "vit_tiny_patch16_224", "efficientnet_b0"),
    "torchvision": ("mobilenet_v3_small", "fcn_resnet50", "r3d_18", "raft_small"),
    "diffusers": (
        *("UNet2DConditionModel", "AutoencoderKL", "FluxTransformer2DModel", "ControlNetModel"),
        *("ZImageControlNetModel", "RFD4ProteinaTransformer"),
    ),
    "sentence-transformers": ("all-MiniLM-L6-v2", "LaBSE"),
    "open_clip": ("ViT-B-32", "ViT-B-32:text", "roberta-ViT-B-32"),
}


def specs(*names: str) -> tuple[records.ModelSpec, ...]:
    source = choose_source(names[0].partition("/")[0], heads="all")[0]
    return by_name(source.models(), names)


def check(results: Iterable[Result]) -> None:
    for result in results:
        assert result.status in (Status.PASS, Status.GRAPH_BREAK), result.detail
        assert result.ops, result.request.model.name
        # A tensor reached the model.
        assert any(each.shape for each in result.inputs)


@pytest.mark.libraries
@pytest.mark.matrix
@pytest.mark.parametrize("source", LISTS)
def test_models(source: str, tmp_path: Path) -> None:
    names = (f"{source}/{name}" for name in LISTS[source])
    results = evaluated(specs(*names), "libraries", tmp_path)
    check(results)
    parameters = {result.request.model.name: result.parameters or 0 for result in results}
    # Of 60 million with all 50 blocks.
    assert parameters.get("timm/resnet152", 1) in range(1, 30_000_000)


@pytest.mark.vision
@pytest.mark.matrix
def test_a_detector_gets_images_of_its_own_and_in_train_mode_boxes(tmp_path: Path) -> None:
    results = evaluated(specs(DETECTOR), "vision", tmp_path, Mode.TRAIN)
    check(results)
    assert {"images[0]", "targets[0].boxes"} <= {each.name for each in results[0].inputs}


@pytest.mark.vision
@pytest.mark.matrix
@pytest.mark.parametrize("mode", [Mode.EVAL, Mode.TRAIN])
def test_a_script_gives_a_detector_boxes_in_train_mode_only(mode: Mode) -> None:
    text = script(DETECTOR, "vision", mode)
    assert ("'targets':" in text) is (mode is Mode.TRAIN)
    assert ("[[16.0, 16.0, 128.0, 160.0]]" in text) is (mode is Mode.TRAIN)


def script(name: str, environment: str, mode: Mode = Mode.EVAL) -> str:
    """What a worker writes for `reproduce`: it derives the inputs from the model."""
    target = records.Target(environment=environment, mode=mode)
    request = records.Request(model=specs(name)[0], target=target, key="k", depth=Depth.REDUCED)
    environments = Environments(load_settings().cache_folder)
    return call_worker(environments, "reproduce", request, Script).text


@pytest.mark.libraries
@pytest.mark.matrix
@pytest.mark.parametrize(
    "name", ["timm/resnet18", "torchvision/mobilenet_v3_small", "diffusers/MultiAdapter"]
)
def test_a_script_of_plain_pytorch_builds_the_model_and_finds_the_same(
    name: str, tmp_path: Path
) -> None:
    text = script(name, "libraries")
    assert "compilewatch" not in text
    python = Environments(load_settings().cache_folder).interpreter("libraries").path
    ended = subprocess.run([python, "-"], input=text.encode(), cwd=tmp_path, capture_output=True)
    assert ended.returncode == 0, ended.stderr.decode()[-500:]


def test_an_incomplete_configuration_of_open_clip_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", ModuleType("open_clip"))
    path = tmp_path / "open_clip_config.json"
    path.write_text('{"model_cfg": {"vision_cfg": {"layers": 1}, "text_cfg": {}}}')
    build = records.LibraryBuild(library="open_clip", name="a/clip", configuration=str(path))
    with pytest.raises(ConfigError, match=f"a/clip: .* lacks embed_dim, text_cfg: complete {path}"):
        library("open_clip").constructor(build, Depth.FULL)


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
def test_the_configuration_of_a_repository_decides(tmp_path: Path) -> None:
    specs = []
    for name, (model, values, _) in CONFIGURATIONS.items():
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(values))
        build = records.LibraryBuild(library=name, name=model, configuration=str(file))
        specs.append(records.ModelSpec(source="hub", name=name, build=build))
    results = evaluated(specs, "libraries", tmp_path, depth=Depth.FULL)
    check(results)
    shapes = {result.request.model.name: result.inputs[0].shape for result in results}
    assert shapes == {name: shape for name, (_, _, shape) in CONFIGURATIONS.items()}
