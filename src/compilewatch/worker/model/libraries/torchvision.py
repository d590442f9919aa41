"""torchvision: models by name, with inputs as their task and their published weights ask for."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from compilewatch.contract.libraries import LibraryModel
from compilewatch.records import Depth, LibraryBuild
from compilewatch.worker.model.libraries import BATCH, Library

TASKS = {
    "models": "vision",
    "detection": "detection",
    "segmentation": "segmentation",
    "video": "video",
    "optical_flow": "optical-flow",
}
"""Folders of models with their task, in the order in which they are listed. Quantised models are
left out: they are the same architectures with other operators."""

SIDE = 224
"""Height and width of an image if the weights do not say them."""

FLOW_SIDE = 128
"""The smallest side of a frame: RAFT divides it by 8 and needs 16 places after that."""

FRAMES = 16
"""Frames of a video if the weights do not say them."""


class Torchvision(Library):
    """A model of torchvision's registry, without weights."""

    def models(self) -> Iterator[LibraryModel]:
        from torchvision import models

        places = []
        for name in models.list_models():
            builder = inspect.unwrap(models.get_model_builder(name))
            *_, folder, family = builder.__module__.split(".")
            if folder in TASKS:
                line = builder.__code__.co_firstlineno
                places.append((list(TASKS).index(folder), family, line, name, TASKS[folder]))
        for _, family, _, name, task in sorted(places):
            yield LibraryModel(name=name, family=family, task=task)

    def source(self, build: LibraryBuild, depth: Depth) -> list[str] | None:
        from torchvision import models

        if depth is Depth.REDUCED:
            return None
        # No weights; without the second one, a detector downloads those of its backbone.
        parameters = inspect.signature(models.get_model_builder(build.name)).parameters
        given = [name for name in ("weights", "weights_backbone") if name in parameters]
        arguments = "".join(f", {name}=None" for name in given)
        return [
            "from torchvision import models",
            "",
            f"model = models.get_model({build.name!r}{arguments})",
        ]

    def inputs(self, module: nn.Module, build: LibraryBuild) -> dict[str, Any] | None:
        from torchvision import models

        task = type(module).__module__
        weights = models.get_model_weights(build.name)
        published = next(iter(weights), None)
        # Some weights are for larger images than the model takes by default.
        side = getattr(module, "image_size", None) or _crop(published)
        if ".detection." in task:
            return _detection(module)
        if ".optical_flow." in task:
            frames = [torch.rand(BATCH, 3, FLOW_SIDE, FLOW_SIDE) for _ in range(2)]
            return {"image1": frames[0], "image2": frames[1]}
        name = next(iter(inspect.signature(module.forward).parameters))
        shape: tuple[int, ...] = (BATCH, 3, side, side)
        if ".video." in task:
            meta = published.meta if published is not None else {}
            frames_needed = max(int(meta.get("min_temporal_size", FRAMES)), FRAMES)
            shape = (BATCH, 3, frames_needed, side, side)
        return {name: torch.randn(shape)}


def _crop(weights: Any) -> int:
    """The side that the transforms of published weights crop an image to."""
    keywords = getattr(getattr(weights, "transforms", None), "keywords", {})
    crop = keywords.get("crop_size", SIDE)
    return int(crop[0]) if isinstance(crop, (list, tuple)) else int(crop)


def _detection(module: nn.Module) -> dict[str, Any]:
    """Images of two sizes, and in train mode the boxes in each."""
    images = [torch.rand(3, 256, 320), torch.rand(3, 224, 256)]
    if not module.training:
        return {"images": images}
    box = torch.tensor([[16.0, 16.0, 128.0, 160.0]])
    target: dict[str, torch.Tensor] = {"boxes": box, "labels": torch.tensor([1])}
    heads = getattr(module, "roi_heads", None)
    if getattr(heads, "mask_head", None) is not None:
        target |= {"masks": torch.ones(1, 224, 256, dtype=torch.uint8)}
    if getattr(heads, "keypoint_head", None) is not None:
        points = torch.tensor([[[64.0, 64.0, 1.0]] * 17])
        target |= {"keypoints": points}
    targets = [dict(target) for _ in images]
    if "masks" in target:
        targets[0]["masks"] = torch.ones(1, 256, 320, dtype=torch.uint8)
    return {"images": images, "targets": targets}
