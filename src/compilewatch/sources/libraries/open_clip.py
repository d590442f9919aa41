"""The source `open_clip`: the configurations that the package contains, whole and by tower."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from compilewatch.errors import SourceError
from compilewatch.sources.libraries.source import LibraryModel, PackageSource

TOWERS = {"visual": "vision", "text": "text"}
"""The parts of a model, which end its name (`ViT-B-32:visual`), with the task of each."""


class OpenClipSource(PackageSource):
    """A model of two towers; `heads="all"` adds each tower by itself."""

    name = "open_clip"
    library = "open_clip"

    def files(self, package: Path) -> Iterable[Path]:
        return (package / "model_configs").glob("*.json")

    def scan(self, package: Path) -> tuple[LibraryModel, ...]:
        models = []
        for path in sorted(self.files(package)):
            family = _family(path)
            models.append(LibraryModel(name=path.stem, family=family, task="multimodal"))
            models += [
                LibraryModel(name=f"{path.stem}:{tower}", family=family, task=task, selected=False)
                for tower, task in TOWERS.items()
            ]
        return tuple(models)


def _family(path: Path) -> str:
    """What makes the visual tower: `vit`, `resnet`, `coca`, or timm's name of its architecture."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot be read: {error}") from None
    vision = values.get("vision_cfg", {})
    if "multimodal_cfg" in values:
        return "coca"
    if name := vision.get("timm_model_name"):
        return str(name).partition("_")[0]
    return "resnet" if isinstance(vision.get("layers"), list) else "vit"
