"""The source `torchvision`: classification, detection, segmentation, video and optical flow."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from compilewatch.sources.libraries.reading import decorated, decorator_argument, parsed
from compilewatch.sources.libraries.source import LibraryModel, PackageSource

TASKS = {
    "": "vision",
    "detection": "detection",
    "segmentation": "segmentation",
    "video": "video",
    "optical_flow": "optical-flow",
}
"""Folders below `models` with the task of their models. Quantised models are left out: they are
the same architectures with other operators."""

DECORATOR = "register_model"


class TorchvisionSource(PackageSource):
    """torchvision registers each function that makes a model, some under another name."""

    name = "torchvision"
    library = "torchvision"

    def files(self, package: Path) -> Iterable[Path]:
        return (path for folder in TASKS for path in _modules(package, folder))

    def scan(self, package: Path) -> tuple[LibraryModel, ...]:
        found = []
        for folder, task in TASKS.items():
            for path in _modules(package, folder):
                found += [
                    LibraryModel(
                        name=decorator_argument(function, DECORATOR, "name") or function.name,
                        family=path.stem,
                        task=task,
                    )
                    for function in decorated(parsed(path), DECORATOR)
                ]
        return tuple(found)


def _modules(package: Path, folder: str) -> list[Path]:
    """The modules of a task; those that begin with an underscore are machinery."""
    paths = (package / "models" / folder).glob("*.py")
    return sorted(path for path in paths if not path.name.startswith("_"))
