"""The source `timm`: every architecture function of timm, in the order of its files."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from compilewatch.sources.libraries.reading import decorated, last_name, parsed
from compilewatch.sources.libraries.source import LibraryModel, PackageSource

DECORATOR = "register_model"


class TimmSource(PackageSource):
    """timm registers an architecture by a decorator, and its weights as `architecture.tag`."""

    name = "timm"
    library = "timm"
    one_of_each_family = True

    def files(self, package: Path) -> Iterable[Path]:
        """The modules with architectures; those that begin with an underscore are machinery."""
        return (p for p in (package / "models").glob("*.py") if not p.name.startswith("_"))

    def scan(self, package: Path) -> tuple[LibraryModel, ...]:
        found = []
        for path in sorted(self.files(package)):
            tree = parsed(path)
            weights = _published(tree)
            found += [
                LibraryModel(
                    name=function.name, family=path.stem, published=function.name in weights
                )
                for function in decorated(tree, DECORATOR)
            ]
        return tuple(found)


def _published(tree: ast.Module) -> set[str]:
    """The architectures of `default_cfgs` that have weights: an entry with an address."""
    found = set()
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and last_name(node) == "generate_default_cfgs"):
            continue
        for argument in node.args:
            if isinstance(argument, ast.Dict):
                for key, value in zip(argument.keys, argument.values, strict=True):
                    if isinstance(key, ast.Constant) and _has_weights(value):
                        found.add(str(key.value).partition(".")[0])
    return found


def _has_weights(entry: ast.expr) -> bool:
    if not isinstance(entry, ast.Call):
        return False
    given = {keyword.arg: keyword.value for keyword in entry.keywords}
    return bool(given.keys() & {"url", "hf_hub_id", "file"})
