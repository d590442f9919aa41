"""A few models of each library, built and captured in the environment that has it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from compilewatch.api.choose import call_worker
from compilewatch.config import load_settings
from compilewatch.contract.messages import Script
from compilewatch.environments import Environments
from compilewatch.errors import ConfigError
from compilewatch.plan import place_model
from compilewatch.records import (
    DEFAULT_ENVIRONMENT,
    Depth,
    LibraryBuild,
    Mode,
    ModelSpec,
    Request,
    Result,
    Status,
    Target,
)
from compilewatch.sources import choose_source
from compilewatch.sources.select import by_name
from compilewatch.worker.model.libraries import library
from tests import factories
from tests.integration.worker.model.conftest import evaluated

pytestmark = pytest.mark.torch

# Only the libraries themselves show that their models are built, called and made shallow as
# worker/model/libraries expects; a start of a worker takes more than two seconds.
LISTS = {
    "timm": ("timm/resnet18", "timm/vit_tiny_patch16_224", "timm/efficientnet_b0"),
    "torchvision": (
        "torchvision/mobilenet_v3_small",
        "torchvision/fcn_resnet50",
        "torchvision/r3d_18",
        "torchvision/raft_small",
    ),
    "diffusers": (
        "diffusers/UNet2DConditionModel",
        "diffusers/AutoencoderKL",
        "diffusers/FluxTransformer2DModel",
        "diffusers/ControlNetModel",
        "diffusers/ZImageControlNetModel",
        "diffusers/RFD4ProteinaTransformer",
    ),
    "sentence-transformers": (
        "sentence-transformers/all-MiniLM-L6-v2",
        "sentence-transformers/LaBSE",
    ),
    "open_clip": ("open_clip/ViT-B-32", "open_clip/ViT-B-32:text", "open_clip/roberta-ViT-B-32"),
}


def of_source(
    source: str, names: tuple[str, ...], scratch: Path, mode: Mode = Mode.EVAL
) -> list[Result]:
    specs = by_name(choose_source(source, heads="all")[0].models(), names)
    place = place_model(
        specs[0], Target(mode=mode), [], {DEFAULT_ENVIRONMENT: factories.environment()}
    )[1]
    return evaluated(specs, place.environment, scratch, mode)


def check(results: list[Result]) -> None:
    for result in results:
        assert result.status in (Status.PASS, Status.GRAPH_BREAK), result.detail
        assert result.ops, result.request.model.name
        # A tensor reached the model.
        assert any(each.shape for each in result.inputs)


@pytest.mark.vision
@pytest.mark.matrix
@pytest.mark.parametrize("source", ["timm", "torchvision"])
def test_models_of_vision(source: str, tmp_path: Path) -> None:
    check(of_source(source, LISTS[source], tmp_path))


@pytest.mark.libraries
@pytest.mark.matrix
@pytest.mark.parametrize("source", ["diffusers", "sentence-transformers", "open_clip"])
def test_models_of_libraries(source: str, tmp_path: Path) -> None:
    check(of_source(source, LISTS[source], tmp_path))


@pytest.mark.vision
@pytest.mark.matrix
def test_a_detector_gets_images_of_its_own_and_in_train_mode_boxes(tmp_path: Path) -> None:
    (result,) = of_source(
        "torchvision", ("torchvision/ssdlite320_mobilenet_v3_large",), tmp_path, Mode.TRAIN
    )
    names = {each.name for each in result.inputs}
    assert {"images[0]", "targets[0].boxes"} <= names
    assert result.status in (Status.PASS, Status.GRAPH_BREAK), result.detail


@pytest.mark.vision
@pytest.mark.matrix
def test_reduced_depth_keeps_few_blocks(tmp_path: Path) -> None:
    (result,) = of_source("timm", ("timm/resnet152",), tmp_path)
    assert result.parameters is not None
    # With all 50 blocks: 60 million.
    assert result.parameters < 30_000_000


@pytest.mark.libraries
@pytest.mark.matrix
@pytest.mark.parametrize(
    "name", ["timm/resnet18", "torchvision/mobilenet_v3_small", "diffusers/MultiAdapter"]
)
def test_a_script_of_plain_pytorch_builds_the_model_and_finds_the_same(
    name: str, tmp_path: Path
) -> None:
    source = name.partition("/")[0]
    (spec,) = by_name(choose_source(source, heads="all")[0].models(), (name,))
    request = Request(
        model=spec, target=Target(environment="libraries"), key="k", depth=Depth.REDUCED
    )
    environments = Environments(load_settings().cache_folder)
    script = call_worker(environments, "reproduce", request, Script).text
    assert "compilewatch" not in script
    python = environments.interpreter("libraries").path
    ended = subprocess.run([python, "-"], input=script.encode(), cwd=tmp_path, capture_output=True)
    assert ended.returncode == 0, ended.stderr.decode()[-500:]


@pytest.mark.vision
@pytest.mark.matrix
@pytest.mark.parametrize("mode", [Mode.EVAL, Mode.TRAIN])
def test_a_script_gives_a_detector_boxes_in_train_mode_only(mode: Mode) -> None:
    """A worker has to write the script: it derives the inputs from the model."""
    name = "torchvision/ssdlite320_mobilenet_v3_large"
    (spec,) = by_name(choose_source("torchvision")[0].models(), (name,))
    target = Target(environment="vision", mode=mode)
    request = Request(model=spec, target=target, key="k", depth=Depth.REDUCED)
    environments = Environments(load_settings().cache_folder)
    script = call_worker(environments, "reproduce", request, Script).text
    assert ("'targets':" in script) is (mode is Mode.TRAIN)
    assert ("[[16.0, 16.0, 128.0, 160.0]]" in script) is (mode is Mode.TRAIN)


def test_an_incomplete_configuration_of_open_clip_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", ModuleType("open_clip"))
    path = tmp_path / "open_clip_config.json"
    path.write_text('{"model_cfg": {"vision_cfg": {"layers": 1}, "text_cfg": {}}}')
    build = LibraryBuild(library="open_clip", name="a/clip", configuration=str(path))
    with pytest.raises(ConfigError, match=f"a/clip: .* lacks embed_dim, text_cfg: complete {path}"):
        library("open_clip").constructor(build, Depth.FULL)


CONFIGURATIONS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "timm": (
        "resnet18",
        {"num_classes": 7, "pretrained_cfg": {"input_size": [3, 96, 96], "num_classes": 7}},
        (2, 3, 96, 96),
    ),
    "diffusers": (
        "UNet2DModel",
        {
            "_class_name": "UNet2DModel",
            "in_channels": 5,
            "out_channels": 5,
            "block_out_channels": [32, 64],
            "down_block_types": ["DownBlock2D", "DownBlock2D"],
            "up_block_types": ["UpBlock2D", "UpBlock2D"],
        },
        (2, 5, 16, 16),
    ),
    "open_clip": (
        "a/repository",
        {
            "model_cfg": {
                "embed_dim": 32,
                "vision_cfg": {"image_size": 64, "layers": 3, "width": 64, "patch_size": 32},
                "text_cfg": {"vocab_size": 500, "width": 64, "heads": 2, "layers": 3},
            }
        },
        (2, 3, 64, 64),
    ),
}
"""Library -> a model, the configuration that a repository has of it, and the shape of its input."""


@pytest.mark.libraries
@pytest.mark.matrix
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_configuration_of_a_repository_decides(name: str, tmp_path: Path) -> None:
    model, values, shape = CONFIGURATIONS[name]
    file = tmp_path / "config.json"
    file.write_text(json.dumps(values))
    build = LibraryBuild(library=name, name=model, configuration=str(file))
    spec = ModelSpec(source="hub", name="a/repository", build=build)
    (result,) = evaluated([spec], "libraries", tmp_path, depth=Depth.FULL)
    check([result])
    assert result.inputs[0].shape == shape
