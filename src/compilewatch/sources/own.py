"""A user's own model: a folder with a `config.json`, a Python file, or a factory in a module.

Mistakes are found without importing the model: a missing module here, and in `factories` a syntax
error, a name that the file does not define, or a function that needs arguments.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from compilewatch.config import inputs_folder
from compilewatch.contract.failures import how_to_get
from compilewatch.data import package_classes
from compilewatch.errors import ConfigError, MissingModuleError
from compilewatch.records import FactoryBuild, ModelSpec
from compilewatch.sources.configs import Resolver, read_config
from compilewatch.sources.factories import check_factory, only_factory
from compilewatch.sources.select import FACTORY, FORMS, is_file, is_path, split
from compilewatch.sources.transformers.scan import read_library


def own_model(
    name: str, python_path: Sequence[Path] = (), root: Path | None = None
) -> ModelSpec | None:
    """The model that a path or `MODULE:FACTORY` names; None for a name of another form.

    `root` is the package folder of the Transformers that has the class of a configuration; the
    packages beside it are those of its environment (None: of this interpreter).

    Modules are searched first in `python_path`, then in the current folder, then among the
    packages of the environment. Raises ConfigError, with one line, if something is missing or
    invalid.
    """
    path, attribute = split(name)
    file = Path(path).expanduser()
    if is_file(name):
        return _file_spec(file, attribute, name, python_path, root)
    folder = file.parent if file.name == "config.json" else file
    if not attribute and (is_path(path) or (folder / "config.json").is_file()):
        return folder_spec(folder, name, root=root)
    if not FACTORY.fullmatch(name):
        return None
    return factory_spec(name, name, python_path=_searched(path, python_path), root=root)


def dotted_model(
    name: str, python_path: Sequence[Path] = (), root: Path | None = None
) -> ModelSpec | None:
    """The model that `module` or `module.factory` names; None if there is no such module."""
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", name):
        return None
    searched = _searched(name, python_path)
    module, _, attribute = name.rpartition(".")
    for candidate, attribute_name in ((name, ""), (module, attribute)):
        file = _module_file(candidate, searched, root) if candidate else None
        # A name without a dot is one of the team's own modules, never an installed package.
        if file is None or ("." not in name and not searched):
            continue
        callable_name = attribute_name or only_factory(file, candidate)
        return factory_spec(f"{candidate}:{callable_name}", name, python_path=searched, root=root)
    return None


def folder_spec(
    folder: Path, name: str, *, weights: bool = False, trust: bool = False, root: Path | None = None
) -> ModelSpec:
    """A local folder with a `config.json`, in the layout of `save_pretrained`."""
    if not (folder / "config.json").is_file():
        missing = f"the folder {folder} does not exist"
        what = f"{folder} has no config.json" if folder.is_dir() else missing
        raise ConfigError(f"{what}: {FORMS}")
    elsewhere = package_classes(inputs_folder() / "overrides")
    resolved = Resolver(read_library(root), elsewhere).resolve(
        folder / "config.json",
        read_config(folder / "config.json"),
        repo=str(folder.resolve()) if weights or trust else None,
        weights=weights,
        trust_remote_code=trust,
    )
    reason = resolved.skip_reason
    if reason is not None and resolved.needs_remote_code:
        reason = "remote code: set `trust = true` in the manifest if you have reviewed the code"
    return ModelSpec(
        source="manifest",
        name=name,
        build=resolved.build,
        architecture=resolved.architecture,
        family=resolved.family,
        task=resolved.task,
        skip_reason=reason,
    )


def factory_spec(
    factory: str,
    name: str,
    *,
    python_path: Sequence[Path] = (),
    inputs: str | None = None,
    root: Path | None = None,
) -> ModelSpec:
    """The model of `package.module:callable`. The module is located and hashed, not imported.

    The digest also covers the Python files beside it, because a model is often in the same folder
    as its factory. Raises ConfigError for a malformed reference, a module that does not exist or is
    not Python, and a callable that the module does not define or that needs arguments; without
    `python_path`, a module that does not exist is a MissingModuleError: a package may be missing.
    """
    for reference in (factory, inputs):
        if reference is not None and not FACTORY.fullmatch(reference):
            raise ConfigError(f"{reference!r} is not of the form package.module:callable")
    module, _, attribute = factory.partition(":")
    where = _module_file(module, python_path, root)
    if where is None:
        raise _missing(module, python_path, root)
    check_factory(where, attribute, module)
    digest = hashlib.sha256()
    for path in sorted(path for path in where.parent.glob("*.py") if path.is_file()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return ModelSpec(
        source="manifest",
        name=name,
        build=FactoryBuild(
            factory=factory,
            path=os.pathsep.join(str(path.resolve()) for path in python_path) or None,
            inputs=inputs,
            source_sha256=digest.hexdigest(),
        ),
        architecture=factory,
    )


def _missing(module: str, python_path: Sequence[Path], root: Path | None) -> ConfigError:
    searched = os.pathsep.join(map(str, python_path))
    packages = "the Python path" if root is None else str(root.parent)
    message = (
        f"there is no module {module} on {searched or packages}: give MODULE:FACTORY and, with "
        "python_path (--python-path), the folder of the module"
    )
    if python_path:
        return ConfigError(message)
    package = how_to_get(module.partition(".")[0])
    return MissingModuleError(f"{message}; for an installed package, the model {package}")


def with_inputs(spec: ModelSpec, inputs: str, root: Path | None = None) -> ModelSpec:
    """Return a person's own model with inputs from `MODULE:FUNCTION` or `./FILE.py:NAME`.

    Raises ConfigError if the callable does not exist or needs arguments, or for another model.
    """
    if not isinstance(spec.build, FactoryBuild):
        raise ConfigError(f"--inputs {inputs}: a callable makes inputs of your own models only")
    path, _, attribute = inputs.rpartition(":")
    folders = spec.build.python_path
    python_path = tuple(map(Path, folders))
    if path.endswith(".py"):
        inputs_spec = _file_spec(Path(path).expanduser(), attribute, inputs, python_path, root)
    elif FACTORY.fullmatch(inputs):
        inputs_spec = factory_spec(
            inputs, inputs, python_path=_searched(path, python_path), root=root
        )
    else:
        raise ConfigError(f"--inputs {inputs}: expected a file or MODULE:FUNCTION")
    assert isinstance(inputs_spec.build, FactoryBuild)
    searched = dict.fromkeys((*inputs_spec.build.python_path, *folders))
    build = msgspec.structs.replace(
        spec.build,
        inputs=inputs_spec.build.factory,
        path=os.pathsep.join(searched) or None,
        source_sha256=f"{spec.build.source_sha256} {inputs_spec.build.source_sha256}",
    )
    return msgspec.structs.replace(spec, build=build)


def _searched(module: str, python_path: Sequence[Path]) -> tuple[Path, ...]:
    """The folders to search for a module: the current folder only if it contains the package."""
    top = Path.cwd() / module.partition(".")[0]
    return (
        *python_path,
        *([Path.cwd()] if top.is_dir() or top.with_suffix(".py").exists() else []),
    )


def _file_spec(
    file: Path, attribute: str, name: str, python_path: Sequence[Path], root: Path | None = None
) -> ModelSpec:
    """A factory in a file. If the file belongs to a package, it is imported as its submodule."""
    if not file.is_file():
        raise ConfigError(f"the file {file} does not exist: {FORMS}")
    file = file.resolve()
    parts = [] if file.name == "__init__.py" else [file.stem]
    top = file.parent
    while (top / "__init__.py").is_file():
        parts.insert(0, top.name)
        top = top.parent
    if not parts or not all(part.isidentifier() for part in parts):
        raise ConfigError(f"{file.name} cannot be imported: rename it to a valid Python identifier")
    shown = name if not attribute else name.rpartition(":")[0]
    factory = f"{'.'.join(parts)}:{attribute or only_factory(file, shown)}"
    return factory_spec(factory, name, python_path=(top, *python_path), root=root)


def _module_file(
    module: str, python_path: Sequence[Path] = (), root: Path | None = None
) -> Path | None:
    """The file of a dotted module. Nothing is imported, not even parent packages."""
    top, *rest = module.split(".")
    for folder in _places(top, python_path, root):
        stem = folder.joinpath(*rest) if rest else folder
        for candidate in (stem.with_suffix(".py"), stem / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None


def _places(top: str, python_path: Sequence[Path], root: Path | None) -> Iterator[Path]:
    """Possible places of the top-level package: `…/top`, a folder or a file without its suffix."""
    yield from (folder / top for folder in python_path)
    if root is not None:
        yield from (folder / top for folder in _package_folders(root.parent))
        return
    if top in sys.builtin_module_names:
        return
    module_spec = importlib.util.find_spec(top)
    if module_spec is not None and module_spec.submodule_search_locations:
        yield from map(Path, module_spec.submodule_search_locations)
    elif module_spec is not None and module_spec.origin:
        yield Path(module_spec.origin).with_suffix("")


def _package_folders(packages: Path) -> Iterator[Path]:
    """The folder of an environment's packages, and those that its `.pth` files name."""
    yield packages
    for listed in sorted(packages.glob("*.pth")):
        for line in listed.read_text(errors="replace").splitlines():
            if line and not line.startswith(("import ", "import\t", "#")):
                yield packages / line.strip()
