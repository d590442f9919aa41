"""The source `diffusers`: every exported model class, and the models that pipelines consist of."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from compilewatch.sources.libraries.reading import last_name, parsed
from compilewatch.sources.libraries.source import LibraryModel, PackageSource

ROOT_CLASS = "ModelMixin"

_NO_MODELS = ("Tokenizer", "TokenizerFast", "Processor", "FeatureExtractor", "Config")
"""Ends of the names of Transformers' classes that a pipeline takes and that are no models."""


class DiffusersSource(PackageSource):
    """The subclasses of `ModelMixin`; each is built from its own default configuration."""

    name = "diffusers"
    library = "diffusers"

    def files(self, package: Path) -> Iterable[Path]:
        yield from (package / "models").rglob("*.py")
        yield from (package / "pipelines").rglob("pipeline_*.py")
        yield from package.glob("__init__.py")

    def scan(self, package: Path) -> tuple[LibraryModel, ...]:
        exported = _strings(parsed(package / "__init__.py"))
        paths = sorted((package / "models").rglob("*.py"))
        classes = {node.name: (node, path) for path in paths for node in _classes(parsed(path))}
        models = tuple(
            LibraryModel(name=name, family=path.stem, task=_task(path, package))
            for name, (node, path) in classes.items()
            if name in exported and _is_model(name, classes) and _can_run(node)
        )
        names = {model.name for model in models}
        pipelines = [
            pipeline
            for path in sorted((package / "pipelines").rglob("pipeline_*.py"))
            for pipeline in _pipelines(parsed(path), exported, names)
        ]
        return (*models, *pipelines)


def _task(path: Path, package: Path) -> str:
    """The folder below `models`: `autoencoders`, `unets`, `transformers`, `controlnets`."""
    folders = path.relative_to(package / "models").parts[:-1]
    return folders[0].replace("_", "-") if folders else "diffusion"


def _strings(tree: ast.Module) -> set[str]:
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {node.value for node in constants if isinstance(node.value, str)}


def _classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in tree.body if isinstance(node, ast.ClassDef))


def _is_model(name: str, classes: dict[str, tuple[ast.ClassDef, Path]]) -> bool:
    """Whether a class derives from `ModelMixin`, directly or through a class of the library."""
    if name not in classes:
        return False
    bases = [last_name(base) for base in classes[name][0].bases]
    return ROOT_CLASS in bases or any(b and b != name and _is_model(b, classes) for b in bases)


def _can_run(node: ast.ClassDef) -> bool:
    """Whether a class has a forward: some only hold weights that another class takes."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "forward":
            body = [each for each in item.body if not isinstance(each, ast.Expr)]
            return not all(isinstance(each, ast.Pass | ast.Raise) for each in body)
    return True


def _pipelines(tree: ast.Module, exported: set[str], models: set[str]) -> Iterator[LibraryModel]:
    foreign = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "transformers"
        for alias in node.names
    }
    for node in _classes(tree):
        if node.name not in exported or not node.name.endswith("Pipeline"):
            continue
        parts: dict[str, None] = {}
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                for name in _annotated(item):
                    if name in models:
                        parts[f"diffusers/{name}"] = None
                    elif name in foreign and not name.endswith(_NO_MODELS):
                        parts[name] = None
        if parts:
            yield LibraryModel(name=node.name, family="pipeline", parts=tuple(parts))


def _annotated(function: ast.FunctionDef) -> Iterator[str]:
    """The names in the annotations of a function's arguments, in order."""
    for argument in (*function.args.args, *function.args.kwonlyargs):
        if argument.annotation is not None:
            for node in ast.walk(argument.annotation):
                if isinstance(node, ast.Name):
                    yield node.id
