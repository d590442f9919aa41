"""The contents of the installed Transformers, read from its source text.

Importing Transformers takes ten seconds and imports torch, which the parent never does. All that is
needed (classes, their configurations, model types, reference checkpoints, parameters of `forward`,
auto mappings) is static text, so it is parsed. A scan takes some seconds and is cached in the
user's cache folder; its key is the text of this file and the path, size and time of every file that
it reads.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from compilewatch import extras
from compilewatch.config import cache_folder
from compilewatch.environments import SUPPORTED_TRANSFORMERS
from compilewatch.errors import SourceError, StoreError
from compilewatch.files import DamagedError, from_json, write_atomically
from compilewatch.records import Record

_ROOT_CLASS = "PreTrainedModel"
_ROOT_CONFIGS = ("PreTrainedConfig", "PretrainedConfig")  # since 5.0, and before

# Models of other frameworks, which releases before 5.0 contain.
_FOREIGN = ("modeling_tf_", "modeling_flax_")


class ModelClass(Record, frozen=True, kw_only=True):
    """One exported subclass of `PreTrainedModel`, including abstract ones.

    `module` is the folder under `models/`; `model_type` is that of its configuration class, or of
    its folder if the configuration has none; `parameters` are those of `forward`, without self;
    `modalities` are the declared inputs (`input_modalities`); `backends` are the optional packages
    without which Transformers replaces the class by a placeholder (`@requires`). A class is
    `concrete` if it, or an ancestor below `PreTrainedModel`, defines `__init__`, which makes its
    layers, and if its name is not that of a base class (`…PreTrainedModel`).
    """

    name: str
    module: str
    model_type: str
    config_class: str | None = None
    checkpoint: str | None = None
    parameters: tuple[str, ...] = ()
    modalities: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    concrete: bool = True


class ScannedLibrary(Record, frozen=True, kw_only=True):
    """A scan. `mappings` maps `MODEL_FOR_…_MAPPING_NAMES` to model types to class names."""

    version: str
    classes: tuple[ModelClass, ...]
    mappings: dict[str, dict[str, tuple[str, ...]]]
    model_types: dict[str, str]


def installed_transformers() -> Path:
    """Return the package folder of the Transformers that this interpreter would import."""
    # find_spec finds a top-level package without importing it.
    spec = importlib.util.find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        raise SourceError(f"transformers is not installed here: {extras.install('transformers')}")
    return Path(spec.submodule_search_locations[0])


def transformers_version(root: Path) -> str:
    """Return `__version__` from the package folder's `__init__.py`."""
    try:
        text = (root / "__init__.py").read_text(encoding="utf-8")
    except OSError as exc:
        raise SourceError(f"{root} is not a transformers package: {exc.strerror}") from exc
    version = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if version is None:
        raise SourceError(f"{root} is not a transformers package: no __version__ in __init__.py")
    return version[1]


def read_library(root: Path | None = None, cache: Path | None = None) -> ScannedLibrary:
    """Return the scan of the Transformers at `root`, from the cache if nothing changed.

    A cache that cannot be read or written is ignored, since it only saves time.
    """
    root = root or installed_transformers()
    version = transformers_version(root)
    if version not in SUPPORTED_TRANSFORMERS:
        raise SourceError(
            f"transformers {version} in {root} is not supported: compilewatch reads "
            f"{SUPPORTED_TRANSFORMERS} only"
        )
    files = sorted(_files(root))
    if not files:
        raise SourceError(f"{root} contains no models/*/modeling_*.py: reinstall transformers")
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in files:
        stat = path.stat()
        digest.update(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    cached = (cache or cache_folder()) / f"library-{version}-{digest.hexdigest()[:16]}.json"
    try:
        return from_json(cached.read_bytes(), ScannedLibrary)
    except (OSError, DamagedError):
        library = scan(root)
        with contextlib.suppress(StoreError):
            write_atomically(cached, msgspec.json.encode(library), durable=False)
        return library


def _files(root: Path) -> Iterator[Path]:
    modeling = root.glob("models/*/modeling_*.py")
    yield from (path for path in modeling if not path.name.startswith(_FOREIGN))
    yield from root.glob("models/*/configuration_*.py")
    yield from root.glob("models/auto/auto_mappings.py")
    yield from root.glob("modeling_layers.py")
    yield from root.glob("modeling_utils.py")


class _Class:
    """The relevant parts of a class statement; bases are as written."""

    def __init__(self, node: ast.ClassDef) -> None:
        self.name = node.name
        self.bases = [name for base in node.bases if (name := _last_name(base))]
        self.config = _config_name(node)
        self.model_type = _strings(_attribute(node, "model_type"))
        self.modalities = _strings(_attribute(node, "input_modalities"))
        self.backends = _strings(_decorator_argument(node, "requires", "backends"))
        self.checkpoint = _checkpoint(node)
        functions = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
        self.makes_layers = "__init__" in functions
        self.forward = _parameters(functions["forward"]) if "forward" in functions else ()


class _Module:
    """A parsed file: its classes, its imports from sibling modules, and its exports."""

    def __init__(self, path: Path) -> None:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.folder = path.parent.name
        self.classes = {n.name: _Class(n) for n in tree.body if isinstance(n, ast.ClassDef)}
        self.imports: dict[str, tuple[str, str]] = {}
        self.exports: tuple[str, ...] = ()
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module:
                stem = node.module.rpartition(".")[2]
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = (stem, alias.name)
            elif isinstance(node, ast.Assign) and _last_name(node.targets[0]) == "__all__":
                self.exports = tuple(ast.literal_eval(node.value))


class _Modules:
    """All parsed files by stem (`modeling_bert`), with lookups along the inheritance."""

    def __init__(self, files: list[Path]) -> None:
        self.by_stem = {path.stem: _Module(path) for path in files}

    def lineage(self, stem: str, name: str) -> Iterator[tuple[str, _Class]]:
        """Yield the class and its ancestors, depth first as written, without `PreTrainedModel`."""
        module = self.by_stem.get(stem)
        if module is None or name == _ROOT_CLASS:
            return
        cls = module.classes.get(name)
        if cls is None:
            if name in module.imports and module.imports[name][0] != stem:
                yield from self.lineage(*module.imports[name])
            return
        yield stem, cls
        for base in cls.bases:
            if base != name:
                yield from self.lineage(stem, base)

    def is_model(self, stem: str, name: str) -> bool:
        return any(_ROOT_CLASS in cls.bases for _, cls in self.lineage(stem, name))

    def config_of(self, stem: str, name: str) -> tuple[str, str] | None:
        """Return where the configuration class of a model class is defined, as (stem, name)."""
        for where, cls in self.lineage(stem, name):
            if cls.config is not None:
                return self.by_stem[where].imports.get(cls.config, (where, cls.config))
        return None


def scan(root: Path) -> ScannedLibrary:
    """Parse the Transformers at `root`; takes some seconds. See `read_library`."""
    modules = _Modules(sorted(_files(root)))
    auto = root / "models" / "auto"
    named = _mappings(auto / "modeling_auto.py")
    model_types = _mappings(auto / "auto_mappings.py", auto / "configuration_auto.py").get(
        "CONFIG_MAPPING_NAMES", {}
    )
    type_of_folder = {
        module.folder: model_type
        for model_type, (config, *_) in sorted(model_types.items(), reverse=True)
        for module in modules.by_stem.values()
        if config in module.classes and model_type.replace("-", "_") == module.folder
    }
    classes = [
        _model_class(modules, stem, name, type_of_folder.get(module.folder, module.folder))
        for stem, module in modules.by_stem.items()
        if stem.startswith("modeling_")
        for name in module.exports
        if name in module.classes and modules.is_model(stem, name)
    ]
    return ScannedLibrary(
        version=transformers_version(root),
        classes=tuple(sorted(classes, key=lambda c: c.name)),
        mappings={k: v for k, v in named.items() if k.startswith("MODEL_")},
        model_types={k: v[0] for k, v in model_types.items()},
    )


def _model_class(modules: _Modules, stem: str, name: str, folder_type: str) -> ModelClass:
    config = modules.config_of(stem, name)
    configs = list(modules.lineage(*config)) if config else []
    lineage = [cls for _, cls in modules.lineage(stem, name)]
    return ModelClass(
        name=name,
        module=modules.by_stem[stem].folder,
        config_class=config[1] if config else None,
        model_type=next((c.model_type[0] for _, c in configs if c.model_type), folder_type),
        checkpoint=configs[0][1].checkpoint if configs else None,
        parameters=next((c.forward for c in lineage if c.forward), ()),
        modalities=next((c.modalities for c in lineage if c.modalities), ()),
        backends=lineage[0].backends,
        concrete=not name.endswith(_ROOT_CLASS) and any(c.makes_layers for c in lineage),
    )


def _last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def _attribute(node: ast.ClassDef, name: str) -> ast.expr | None:
    """Return the value assigned to a class attribute, with or without annotation."""
    for item in node.body:
        targets = item.targets if isinstance(item, ast.Assign) else []
        if isinstance(item, ast.AnnAssign):
            targets = [item.target]
        if isinstance(item, (ast.Assign, ast.AnnAssign)) and name in map(_last_name, targets):
            return item.value
    return None


def _strings(node: ast.expr | None) -> tuple[str, ...]:
    """Return a literal string or sequence of strings as a tuple, otherwise an empty tuple."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value:
        return (node.value,)
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(text for element in node.elts for text in _strings(element))
    return ()


def _config_name(node: ast.ClassDef) -> str | None:
    """Return the name of the configuration class, from `config_class = X` or `config: X`."""
    stated = _attribute(node, "config_class")
    if stated is not None:
        return _last_name(stated)
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and _last_name(item.target) == "config":
            names = [n.id for n in ast.walk(item.annotation) if isinstance(n, ast.Name)]
            # The annotation of `PreTrainedModel` itself is not specific to a model.
            return names[0] if names and names[0] not in _ROOT_CONFIGS else None
    return None


def _decorator_argument(node: ast.ClassDef, decorator: str, argument: str) -> ast.expr | None:
    for call in node.decorator_list:
        if isinstance(call, ast.Call) and _last_name(call.func) == decorator:
            for keyword in call.keywords:
                if keyword.arg == argument:
                    return keyword.value
    return None


def _checkpoint(node: ast.ClassDef) -> str | None:
    """Return `checkpoint` of `@auto_docstring`, or else the first Hub link of the docstring."""
    stated = _strings(_decorator_argument(node, "auto_docstring", "checkpoint"))
    if stated:
        return stated[0]
    link = re.search(
        r"\(https://huggingface\.co/([\w.-]+/[\w.-]+?)\)", ast.get_docstring(node) or ""
    )
    return link[1] if link else None


def _parameters(function: ast.FunctionDef) -> tuple[str, ...]:
    arguments = function.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return tuple(a.arg for a in every if a.arg != "self")


def _mappings(*paths: Path) -> dict[str, dict[str, tuple[str, ...]]]:
    """Read every `NAME = OrderedDict([(key, value), …])` and `NAME.update({key: value, …})`.

    A file that does not exist has none: releases before 5.6 have no auto_mappings.py.
    A value is a class name or a tuple of class names. Entries that a mapping copies from another
    one (`*OTHER.items()`) are skipped, because the other mapping is read too.
    """
    mappings: dict[str, dict[str, tuple[str, ...]]] = {}
    for path in filter(Path.exists, paths):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, (ast.Assign, ast.Expr)) or not isinstance(node.value, ast.Call):
                continue
            call = node.value
            name = _last_name(node.targets[0] if isinstance(node, ast.Assign) else _owner(call))
            if name is None or not name.endswith("_NAMES") or not call.args:
                continue
            pairs = mappings.setdefault(name, {})
            for key, value in _pairs(call.args[0]):
                pairs[key] = (value,) if isinstance(value, str) else tuple(value)
    return mappings


def _owner(call: ast.Call) -> ast.expr:
    """Return `X` for `X.update(…)`; for other calls, the call itself."""
    func = call.func
    return func.value if isinstance(func, ast.Attribute) and func.attr == "update" else call


def _pairs(node: ast.expr) -> Iterator[tuple[str, Any]]:
    if isinstance(node, ast.Dict):
        yield from ast.literal_eval(node).items()
    elif isinstance(node, ast.List):
        yield from (ast.literal_eval(e) for e in node.elts if isinstance(e, ast.Tuple))
