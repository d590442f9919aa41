"""Settings: defaults, then compilewatch.toml, COMPILEWATCH_* variables and options; the last wins.

`compilewatch.toml` in the checkout documents each setting. An invalid name or value raises
ConfigError, which names the file (or variable) and the setting. The struct of a table of an extra
is in the extra's folder; the row of the extra names it.
"""

from __future__ import annotations

import functools
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from compilewatch import extras, plugins
from compilewatch.contract.messages import PLAIN_TORCH
from compilewatch.errors import ConfigError, did_you_mean
from compilewatch.records import Deadlines, Depth, Dtype, Mode, Tier, Variants

FILE = "compilewatch.toml"
PREFIX = "COMPILEWATCH_"
CHECKOUT = Path(__file__).resolve().parents[2]

PATHS = {
    "output_dir": "",
    "cache": "",
    "inputs": "",
    "popularity_file": "popularity.csv",
    "models_file": "models.toml",
    "pulled_dir": "pulled",
    "overrides_dir": "overrides",
    "neuron_operators_file": "neuron_operators.toml",
    "expectations_file": "expectations.toml",
}
"""Settings of the core that are paths, and their default names in the folder `inputs`."""

PULLED = Path("pulled/models.toml")
"""The list that `compilewatch pull` writes, in the folder of inputs."""

Table = TypeVar("Table", bound="ExtraSettings")
Shapes = bool | Literal["default"]


@dataclass(frozen=True, kw_only=True)
class Places:
    """Files in the settings of a command; None means the default path.

    `transformers` is the package folder of the Transformers that sources read, beside which the
    other packages of its `environment` are.
    """

    pulled: Path | None = None
    manifest: Path | None = None
    popularity: Path | None = None
    library_popularity: Path | None = None
    cache: Path | None = None
    transformers: Path | None = None
    environment: str = ""
    outputs: Path | None = None


def inputs_folder() -> Path:
    """The folder of reviewed input files, absolute; it need not exist.

    `COMPILEWATCH_INPUTS` if set, else `inputs/` of the current folder, else that of the checkout
    from which compilewatch runs, if there is one.
    """
    if named := os.environ.get("COMPILEWATCH_INPUTS"):
        return Path(named).expanduser().resolve()
    here = Path.cwd() / "inputs"
    there = CHECKOUT / "inputs"
    return there if there.is_dir() and not here.is_dir() else here


def cache_folder() -> Path:
    """compilewatch's folder in the user's cache, absolute; it need not exist.

    `COMPILEWATCH_CACHE` if set, else `compilewatch/` in the XDG cache folder. All its content can
    be created again, so deleting it only costs time.
    """
    if named := os.environ.get("COMPILEWATCH_CACHE"):
        return Path(named).expanduser().resolve()
    # A relative XDG folder must be ignored (XDG Base Directory Specification 0.8).
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "compilewatch"


class SettingsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all tables of compilewatch.toml: each groups the settings of one component."""


class ExtraSettings(SettingsSection, frozen=True, kw_only=True):
    """Base of the tables of extras.

    `paths` are the settings that are paths, and their default names in the folder `inputs`.
    """

    table: ClassVar[str]
    paths: ClassVar[Mapping[str, str]] = MappingProxyType({})


class PushgatewaySettings(SettingsSection, frozen=True, kw_only=True):
    url: str = ""
    username: str = ""
    password: str = ""
    replace: bool = False


class LokiSettings(SettingsSection, frozen=True, kw_only=True):
    url: str = ""
    username: str = ""
    password: str = ""


class S3Settings(SettingsSection, frozen=True, kw_only=True):
    url: str = ""
    endpoint_url: str = ""


class PublishSettings(SettingsSection, frozen=True, kw_only=True):
    timeout_seconds: Annotated[float, Meta(gt=0)] = 30.0
    retry_seconds: Annotated[float, Meta(ge=0)] = 30.0


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See compilewatch.toml. As returned by `load_settings`, paths are absolute and `jobs` >= 1.

    `of_extras` are the tables of extras that are set, by name; `of` returns them.
    """

    output_dir: str = "outputs"
    cache: str = ""
    jobs: Annotated[int, Meta(ge=0)] = 0
    launcher: Literal["local", "ray"] = "local"
    ray_address: str = ""
    memory_limit_gib: Annotated[float, Meta(gt=0)] = 8.0
    environments: tuple[str, ...] = ()
    source: str = "auto"
    top: Annotated[int, Meta(ge=1)] = 25
    heads: Literal["default", "all"] = "default"
    targets: Annotated[tuple[str, ...], Meta(min_length=1)] = ("dynamo",)
    modes: Annotated[tuple[Mode, ...], Meta(min_length=1)] = (Mode.EVAL,)
    dynamic: Shapes = "default"
    nested_graph_breaks: Literal["default", "on", "off"] = "default"
    devices: Annotated[tuple[str, ...], Meta(min_length=1)] = ("cpu",)
    dtype: Literal["default", "config", "float32", "bfloat16", "float16"] = "default"
    depth: Depth = Depth.FULL
    tier: Tier = Tier.AUTO
    variants: Variants = Variants.ALL
    baseline: str = "auto"
    sinks: tuple[str, ...] = ("html", "junit", "metrics_file")
    inputs: str = "inputs"
    popularity_file: str = ""
    models_file: str = ""
    pulled_dir: str = ""
    overrides_dir: str = ""
    neuron_operators_file: str = ""
    expectations_file: str = ""
    pushgateway: PushgatewaySettings = PushgatewaySettings()
    loki: LokiSettings = LokiSettings()
    s3: S3Settings = S3Settings()
    publish: PublishSettings = PublishSettings()
    deadlines: Deadlines = Deadlines()
    of_extras: Mapping[str, ExtraSettings] = msgspec.field(default_factory=dict)

    def of(self, table: type[Table]) -> Table:
        """Return the settings of an extra, in which unset paths are in the folder `inputs`."""
        stored = self.of_extras.get(table.table)
        values = stored if isinstance(stored, table) else table()
        unset = {
            field: str(Path(self.inputs) / default)
            for field, default in table.paths.items()
            if default and not getattr(values, field)
        }
        return msgspec.structs.replace(values, **unset)

    def replaced(self, *tables: ExtraSettings) -> Settings:
        """Return these settings with other tables of extras."""
        changed = {**self.of_extras, **{section.table: section for section in tables}}
        return msgspec.structs.replace(self, of_extras=changed)

    @property
    def cache_folder(self) -> Path | None:
        """The folder of environments and scans; None means the user's cache folder."""
        return Path(self.cache) if self.cache else None

    @property
    def chosen_dynamic(self) -> bool | None:
        """The argument `dynamic` of `torch.compile`."""
        return None if self.dynamic == "default" else self.dynamic

    @property
    def named_dtype(self) -> Dtype | None:
        """The type of weights; None means the default of each device."""
        return None if self.dtype == "default" else Dtype(self.dtype)

    @property
    def memory_limit_bytes(self) -> int:
        return int(self.memory_limit_gib * 2**30)


def load_settings(
    overrides: Mapping[str, Any] | None = None,
    *,
    folder: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """The settings of a command. Raises ConfigError.

    `overrides` come from command-line options; None means that an option was not given. `folder`
    and `environ` replace the current folder and `os.environ`.
    """
    folder = (folder or Path.cwd()).absolute()
    path = find_file(folder)
    checkout = CHECKOUT if (CHECKOUT / "inputs").is_dir() else folder
    home = path.parent if path is not None else checkout
    # By dotted name, `loki.url`.
    values: dict[str, Any] = {name: _rooted(value_of(Settings(), name), home) for name in PATHS}

    def put(name: str, value: Any, origin: str, home: Path, *, strict: bool = True) -> None:
        table, _, field = name.rpartition(".")
        value = _checked(name, value, origin, strict=strict)
        is_path = name in PATHS or (table and field in getattr(_struct(table), "paths", ()))
        values[name] = _rooted(value, home) if is_path else value

    if path is not None:
        for name, value in _flat(_from_file(path), str(path)).items():
            put(name, value, str(path), home)
    for variable, text in sorted((os.environ if environ is None else environ).items()):
        setting = variable.removeprefix(PREFIX).lower()
        if variable.startswith(PREFIX) and variable != PLAIN_TORCH and not _of_missing(setting):
            name = _dotted(setting, variable)
            parts = [part.strip() for part in text.split(",") if part.strip()]
            is_list = get_origin(_plain(_type_of(name))) is tuple
            put(name, parts if is_list else text, variable, folder, strict=False)
    origin = "the command line"
    for name, value in (overrides or {}).items():
        if value is not None:
            tables = {name: msgspec.to_builtins(value)} if _struct(name) else {}
            for flag, given in (_flat(tables, origin) or {_dotted(name, origin): value}).items():
                put(flag, given, origin, folder)
    for name, default in PATHS.items():
        if not values.get(name) and default:
            values[name] = str(Path(values["inputs"]) / default)
    values["jobs"] = values.get("jobs") or len(os.sched_getaffinity(0))
    return _built(values)


def _built(values: Mapping[str, Any]) -> Settings:
    """The settings of values by dotted name."""
    tables: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        table, _, field = name.rpartition(".")
        tables.setdefault(table, {})[field] = value
    fields = tables.pop("", {})
    structs: dict[str, Any] = {
        name: struct(**table) for name, table in tables.items() if (struct := _struct(name))
    }
    fields |= {name: structs.pop(name) for name in SECTIONS if name in structs}
    return Settings(**fields, of_extras=structs)


def value_of(settings: Settings, name: str) -> Any:
    """The value of a setting by its dotted name, `loki.url`."""
    section, _, field = name.rpartition(".")
    return getattr(getattr(settings, section) if section else settings, field)


def where_to_set(name: str) -> str:
    """`url in the table [loki] of compilewatch.toml, or COMPILEWATCH_LOKI_URL`."""
    section, _, field = name.rpartition(".")
    table = f" in the table [{section}]" if section else " in"
    of = "of " if section else ""
    return f"{field}{table} {of}{FILE}, or {PREFIX}{name.replace('.', '_').upper()}"


def find_file(folder: Path) -> Path | None:
    """compilewatch.toml of a folder, of the nearest one above it, or of the checkout."""
    candidates = [place / FILE for place in (folder, *folder.parents, CHECKOUT)]
    return next((path for path in candidates if path.is_file()), None)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _flat(values: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """The settings of a file by dotted names: `jobs`, `loki.url`."""
    settings: dict[str, Any] = {}
    for name, value in values.items():
        if _of_missing(name):
            continue
        if (struct := _struct(name)) is not None:
            if not isinstance(value, Mapping):
                raise ConfigError(f"{origin}: {name}: expected a table, such as [{name}]")
            for field, inner in value.items():
                if field not in struct.__struct_fields__:
                    known = struct.__struct_fields__
                    raise ConfigError(f"{origin}: {name}: {_unknown(field, known)}")
                settings[f"{name}.{field}"] = inner
        elif _type_of(name) is not None:
            settings[name] = value
        else:
            section, _, field = _dotted(name, origin).partition(".")
            raise ConfigError(
                f"{origin}: {name}: write it as `{field}` in the table [{section}], below all "
                "settings that belong to no table"
            )
    return settings


def _dotted(name: str, origin: str) -> str:
    """`loki.url` for `loki_url`, the name in variables and options. Raises ConfigError."""
    if _type_of(name) is not None:
        return name
    for section in (*SECTIONS, *extras.rows("settings")):
        dotted = f"{section}.{name.removeprefix(section + '_')}"
        if name.startswith(f"{section}_") and _type_of(dotted) is not None:
            return dotted
    known = [setting.replace(".", "_") for setting in all_types()]
    raise ConfigError(f"{origin}: {_unknown(name, known)}")


def _checked(name: str, value: Any, origin: str, *, strict: bool) -> Any:
    """The value of a setting; unless `strict`, texts are numbers and booleans too."""
    kind = _type_of(name)
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        message = str(error).partition(" - at `$[")[0]  # the position in a list
        choices = ", ".join(_choices(kind))
        hint = f"; use {choices}" if choices and "enum value" in message else ""
        raise ConfigError(f"{origin}: {name}: {message[0].lower()}{message[1:]}{hint}") from None


def _choices(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return [member.value for member in kind]
    return [choice for part in get_args(kind)[:1] for choice in _choices(part)]


def _rooted(text: str, home: Path) -> str:
    if not text:
        return text
    return os.path.normpath(home / Path(text).expanduser())


def _unknown(name: str, known: Iterable[str]) -> str:
    return f"unknown setting {name!r}{did_you_mean(name, known)}"


def _plain(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def all_sections() -> dict[str, type[msgspec.Struct]]:
    """Table of compilewatch.toml -> its struct, of the core and of the extras that are here."""
    references = extras.rows("settings").items()
    return SECTIONS | {name: plugins.load(reference) for name, reference in references}


def all_types() -> dict[str, Any]:
    """Setting, by dotted name, -> the type of its value, of the core and of the extras here."""
    tables = {f"{name}.": struct for name, struct in all_sections().items()}
    return {
        f"{table}{field}": kind
        for table, struct in {"": Settings, **tables}.items()
        for field, kind in _types(struct).items()
    }


def _struct(name: str) -> type[msgspec.Struct] | None:
    """The struct of a table, which is imported if it is of an extra; None for no table."""
    if name in SECTIONS:
        return SECTIONS[name]
    reference = extras.rows("settings").get(name)
    return plugins.load(reference) if reference else None


def _type_of(name: str) -> Any:
    """The type of a setting's value by its dotted name; None for an unknown setting."""
    table, _, field = name.rpartition(".")
    struct = _struct(table) if table else Settings
    return _types(struct).get(field) if struct else None


def _of_missing(name: str) -> bool:
    """Whether a table, or a setting as variables name it, is of an extra that is not here."""
    here = extras.rows("settings")
    tables = (table for extra in extras.EXTRAS.values() for table in extra.settings)
    return any(f"{name}_".startswith(f"{table}_") for table in tables if table not in here)


SECTIONS: dict[str, type[msgspec.Struct]] = {
    name: kind
    for name, kind in get_type_hints(Settings).items()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
}
"""Table of compilewatch.toml -> its struct, those of the core."""


@functools.cache
def _types(struct: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Field -> type of a table, or of the settings without a table."""
    hints = get_type_hints(struct, include_extras=True)
    return {
        field: Annotated[hints[field], Meta(gt=0)] if struct is Deadlines else hints[field]
        for field in struct.__struct_fields__
        if field != "of_extras" and (struct is not Settings or field not in SECTIONS)
    }
