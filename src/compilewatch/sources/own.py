"""Users' own models: a folder with a `config.json`, a Python file, or a factory in a module.

A name on the command line says one, or an entry of the manifest `inputs/models.toml`. Mistakes are
found without importing the model: a missing module, a syntax error, a name that the file does not
define, or a function that needs arguments.
"""

import ast
import hashlib
import importlib.util
import os
import re
import symtable
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from compilewatch.config import Places, inputs_folder
from compilewatch.contract.failures import how_to_get
from compilewatch.data import package_classes
from compilewatch.errors import ConfigError, MissingModuleError, SourceError
from compilewatch.files import read_json_object, read_toml
from compilewatch.records import SCHEMA_VERSION, FactoryBuild, ModelSpec
from compilewatch.sources.transformers import UNREVIEWED, Resolver, read_library

FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
"""`package.module:callable`."""

FORMS = "name a folder with a config.json, a file ./FILE.py or ./FILE.py:NAME, or MODULE:FACTORY"

_LIKELY = re.compile(r"(build|make|create|get|load)(_\w+)?|\w*_?(model|net|network)")
_NO_FACTORY = re.compile(r"_.*|main|test_.*|(example_)?inputs")
_MODULE_BASES = {"Module", "PreTrainedModel", "LightningModule"}


def is_file(name: str) -> bool:
    """Whether a name is that of a Python file, which no model of a source has."""
    path, attribute = split(name)
    return path.endswith(".py") or bool(attribute and is_path(path))


def split(name: str) -> tuple[str, str]:
    """Return the path or module of `./FILE.py:NAME`, and the name, which may be empty."""
    path, _, attribute = name.rpartition(":") if ":" in name else (name, "", "")
    return path, attribute


def is_path(text: str) -> bool:
    """Whether a text can only be a path."""
    return text.startswith((".", "/", "~"))


class _File:
    """What a Python file defines, by its text. Raises ConfigError for one that is not Python.

    `names` are all that its top level uses. `globals` and `*` among them may define any other.
    """

    def __init__(self, file: Path) -> None:
        try:
            text = importlib.util.decode_source(file.read_bytes())
            tree = ast.parse(text, str(file))
            self.names = set(symtable.symtable(text, str(file), "exec").get_identifiers())
        except SyntaxError as error:
            line = f": {error.text.strip()}" if error.text else ""
            raise ConfigError(f"{file}:{error.lineno}: SyntaxError: {error.msg}{line}") from None
        except (OSError, ValueError, MemoryError, RecursionError) as error:
            reason = str(error) or type(error).__name__
            raise ConfigError(f"{file} cannot be read: {reason}") from None
        imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
        self.names |= {alias.name for node in imports for alias in node.names}
        self.defined = {
            node.name: node
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }

    def factories(self) -> tuple[list[str], list[str], list[str]]:
        """The functions that return something without arguments, the modules, and the outer ones.

        A module is outer if no other class of the file uses it.
        """
        functions = [
            name
            for name, node in self.defined.items()
            if isinstance(node, ast.FunctionDef)
            and not _NO_FACTORY.fullmatch(name)
            and not _needed(node)
            and any(isinstance(inner, ast.Return) and inner.value for inner in ast.walk(node))
        ]
        modules = [name for name in self.defined if self.is_module(name)]
        used = {
            inner.id
            for name in modules
            for inner in ast.walk(self.defined[name])
            if isinstance(inner, ast.Name) and inner.id != name
        }
        callable_modules = [name for name in modules if not _needed(self.defined[name])]
        return functions, callable_modules, [name for name in callable_modules if name not in used]

    def is_module(self, name: str) -> bool:
        """Whether a class seems to be an `nn.Module`, directly or through another of the file."""
        node = self.defined.get(name)
        if not isinstance(node, ast.ClassDef):
            return False
        bases = {
            b.attr if isinstance(b, ast.Attribute) else getattr(b, "id", "") for b in node.bases
        }
        return bool(bases & _MODULE_BASES) or any(map(self.is_module, bases - {name}))


def possible_factories(file: Path) -> list[str]:
    """The functions or classes of a file that make a model without arguments, likely ones only.

    They are functions with a typical name of a factory in a file that defines modules, otherwise
    the modules that no other class of the file uses. Raises ConfigError for a file that is not
    Python.
    """
    of_file = _File(file)
    functions, _, outer = of_file.factories()
    if not any(map(of_file.is_module, of_file.defined)):
        return []
    named = [n for n in functions if _LIKELY.fullmatch(n) and not n.startswith(("get", "load"))]
    return named or outer


def only_factory(file: Path, shown: str) -> str:
    """The only function or class of a file that makes a model.

    Functions without arguments take precedence over classes. Of several functions, the one with a
    typical name of a factory is chosen; of several classes, the one that no other class of the file
    uses. Raises ConfigError with the candidates if there is not exactly one.
    """
    functions, modules, outer = _File(file).factories()
    likely = [name for name in functions if _LIKELY.fullmatch(name)]
    for choice in (functions, likely, *([] if functions else [modules, outer])):
        if len(choice) == 1:
            return choice[0]
    candidates = ", ".join(f"{shown}:{name}" for name in (*functions, *modules))
    if candidates:
        raise ConfigError(f"{shown} has several possible factories: name one of {candidates}")
    raise ConfigError(
        f"{shown} has no function without arguments that returns a module: write one and name it "
        f"as {shown}:NAME"
    )


def check_factory(file: Path, attribute: str, module: str) -> None:
    """Raises ConfigError if a file certainly lacks this callable, or if it needs arguments."""
    of_file = _File(file)
    if not {attribute, "*", "__getattr__", "globals", "setattr"} & of_file.names:
        tops = ", ".join(list(of_file.defined)[:8])
        there = f"; it defines {tops}" if tops else ""
        raise ConfigError(f"{file} has no {attribute}: give MODULE:FACTORY{there}")
    node = of_file.defined.get(attribute)
    if node is not None and (needed := _needed(node)):
        raise ConfigError(
            f"{module}:{attribute} needs {', '.join(needed)}: name a function without "
            "arguments as MODULE:FACTORY"
        )


def _needed(node: ast.FunctionDef | ast.ClassDef) -> list[str]:
    """The arguments that a call of a function or class must give."""
    skipped = 0
    if isinstance(node, ast.ClassDef):
        functions = (inner for inner in node.body if isinstance(inner, ast.FunctionDef))
        init = next((inner for inner in functions if inner.name == "__init__"), None)
        if init is None:
            return []
        node, skipped = init, 1
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    required = positional[skipped : len(positional) - len(arguments.defaults)]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [a.arg for a in (*required, *(a for a, default in named if not default))]


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


def folder_spec(
    folder: Path, name: str, *, weights: bool = False, trust: bool = False, root: Path | None = None
) -> ModelSpec:
    """A local folder with a `config.json`, in the layout of `save_pretrained`."""
    if not (folder / "config.json").is_file():
        missing = f"the folder {folder} does not exist"
        what = f"{folder} has no config.json" if folder.is_dir() else missing
        raise ConfigError(f"{what}: {FORMS}")
    elsewhere = package_classes(inputs_folder() / "overrides")
    spec = Resolver(read_library(root), elsewhere).resolve(
        ModelSpec(source="manifest", name=name, build=FactoryBuild(factory="")),
        folder / "config.json",
        read_json_object(folder / "config.json"),
        repo=str(folder.resolve()) if weights or trust else None,
        weights=weights,
        trust=trust,
    )
    if spec.skip_reason != UNREVIEWED:
        return spec
    reason = "remote code: set `trust = true` in the manifest if you have reviewed the code"
    return msgspec.structs.replace(spec, skip_reason=reason)


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
        packages = "the Python path" if root is None else str(root.parent)
        message = (
            f"there is no module {module} on {os.pathsep.join(map(str, python_path)) or packages}: "
            "give MODULE:FACTORY and, with python_path (--python-path), the folder of the module"
        )
        if python_path:
            raise ConfigError(message)
        package = how_to_get(module.partition(".")[0])
        raise MissingModuleError(f"{message}; for an installed package, the model {package}")
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


def with_inputs(spec: ModelSpec, inputs: str, root: Path | None = None) -> ModelSpec:
    """Return a person's own model with inputs from `MODULE:FUNCTION` or `./FILE.py:NAME`.

    Raises ConfigError if the callable does not exist or needs arguments, or for another model.
    """
    if not isinstance(spec.build, FactoryBuild):
        raise ConfigError(f"--inputs {inputs}: a callable makes inputs of your own models only")
    folders = spec.build.python_path
    inputs_spec = own_model(inputs, tuple(map(Path, folders)), root)
    if inputs_spec is None or not isinstance(inputs_spec.build, FactoryBuild):
        raise ConfigError(f"--inputs {inputs}: expected a file or MODULE:FUNCTION")
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
    # Possible places of the top-level package: `…/top`, a folder or a file without its suffix.
    places = [folder / top for folder in python_path]
    if root is not None:
        places += (folder / top for folder in _package_folders(root.parent))
    elif top not in sys.builtin_module_names and (spec := importlib.util.find_spec(top)):
        if spec.submodule_search_locations:
            places += map(Path, spec.submodule_search_locations)
        elif spec.origin:
            places.append(Path(spec.origin).with_suffix(""))
    for place in places:
        stem = place.joinpath(*rest)
        for candidate in (stem.with_suffix(".py"), stem / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None


def _package_folders(packages: Path) -> Iterator[Path]:
    """The folder of an environment's packages, and those that its `.pth` files name."""
    yield packages
    for listed in sorted(packages.glob("*.pth")):
        for line in listed.read_text(errors="replace").splitlines():
            if line and not line.startswith(("import ", "import\t", "#")):
                yield packages / line.strip()


class ManifestEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[model]]`. With `trust`, the folder's own Python code runs; users must review it."""

    name: str
    path: str | None = None
    factory: str | None = None
    python_path: str | None = None
    inputs: str | None = None
    inputs_file: str | None = None
    weights: bool = False
    trust: bool = False
    revision: str | None = None
    family: str | None = None
    task: str | None = None
    downloads: int | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema_version: int = SCHEMA_VERSION
    model: list[ManifestEntry] = []


class ManifestSource:
    """The models of a manifest: the most downloaded first, those without downloads in its order."""

    name = "manifest"

    def __init__(self, places: Places) -> None:
        self.path = Path(places.settings.models_file)
        self._root = places.transformers

    def models(self) -> tuple[ModelSpec, ...]:
        if not self.path.exists():
            raise SourceError(f"{self.path} does not exist: write it, or choose another --source")
        manifest = read_toml(self.path, Manifest)
        if not manifest.model:
            raise ConfigError(f"{self.path}: there is no [[model]] in it")
        names = [entry.name for entry in manifest.model]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"{self.path}: model {name!r} is listed twice")
        return tuple(
            self._spec_or_error(entry)
            for entry in sorted(manifest.model, key=lambda e: -(e.downloads or 0))
        )

    def _spec_or_error(self, entry: ManifestEntry) -> ModelSpec:
        """The model of an entry. An invalid entry is an error of this model, not of the list.

        A model of a package that is not installed is skipped.
        """
        build = FactoryBuild(factory=entry.factory or "")
        spec = ModelSpec(source=self.name, name=entry.name, build=build)
        try:
            spec = self._spec(entry)
        except MissingModuleError as error:
            spec = msgspec.structs.replace(spec, skip_reason=str(error))
        except ConfigError as error:
            why = f"{self.path}: model {entry.name!r}: {error}"
            spec = msgspec.structs.replace(spec, error=why)
        return msgspec.structs.replace(
            spec,
            family=entry.family or spec.family,
            task=entry.task or spec.task,
            downloads=entry.downloads,
        )

    def _spec(self, entry: ManifestEntry) -> ModelSpec:
        if (entry.path is None) == (entry.factory is None):
            raise ConfigError("it needs either path or factory, and not both")
        base = self.path.resolve().parent
        file = base / entry.inputs_file if entry.inputs_file is not None else None
        if file and not (file.suffix in (".toml", ".safetensors") and file.is_file()):
            raise ConfigError("inputs_file must be a .toml or .safetensors file")
        of_folder, of_factory = ("weights", "trust"), ("inputs", "python_path")
        is_folder = entry.factory is None
        for field in of_factory if is_folder else of_folder:
            if getattr(entry, field):
                kinds = ("factory", "path") if is_folder else ("path", "factory")
                raise ConfigError(f"{field} can be used with {kinds[0]}, not with {kinds[1]}")
        if entry.factory is None:
            folder = base / (entry.path or "")
            spec = folder_spec(
                folder, entry.name, weights=entry.weights, trust=entry.trust, root=self._root
            )
        else:
            spec = factory_spec(
                entry.factory,
                entry.name,
                python_path=(base / entry.python_path,) if entry.python_path else (),
                inputs=entry.inputs,
                root=self._root,
            )
        inputs_file = str(file) if file else None
        return msgspec.structs.replace(spec, inputs_file=inputs_file, revision=entry.revision)
