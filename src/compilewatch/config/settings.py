"""Settings: defaults, then compilewatch.toml, COMPILEWATCH_* variables and options; the last wins.

`compilewatch.toml` in the checkout documents each setting. An invalid name or value raises
ConfigError, which names the file (or variable) and the setting.
"""

from __future__ import annotations

import functools
import os
import tomllib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from compilewatch import extras, plugins
from compilewatch.config.sections import (
    ExtraSettings,
    LokiSettings,
    PublishSettings,
    PushgatewaySettings,
    S3Settings,
)
from compilewatch.contract.messages import PLAIN_TORCH
from compilewatch.errors import ConfigError, did_you_mean
from compilewatch.records import Deadlines, Depth, Dtype, Mode, Tier, Variants

FILE = "compilewatch.toml"
PREFIX = "COMPILEWATCH_"
CHECKOUT = Path(__file__).parents[3]

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

Table = TypeVar("Table", bound=ExtraSettings)
Shapes = bool | Literal["default"]


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
    home = path.parent if path is not None else _home(folder)
    values: dict[str, Any] = {name: _rooted(value_of(Settings(), name), home) for name in PATHS}
    if path is not None:
        _merge(values, _flat(_from_file(path), str(path)), str(path), home)
    for variable, text in sorted((os.environ if environ is None else environ).items()):
        setting = variable.removeprefix(PREFIX).lower()
        if variable.startswith(PREFIX) and variable != PLAIN_TORCH and not _of_missing(setting):
            name = _dotted(setting, variable)
            _merge(values, {name: _parsed(text, _type_of(name))}, variable, folder)
    flags = {k: v for k, v in (overrides or {}).items() if v is not None}
    for name, value in flags.items():
        tables = {name: msgspec.to_builtins(value)} if _section(name) else {}
        flag = _flat(tables, "the command line") or {_dotted(name, "the command line"): value}
        _merge(values, flag, "the command line", folder)
    for name, default in PATHS.items():
        if not values.get(name) and default:
            values[name] = str(Path(values["inputs"]) / default)
    values["jobs"] = values.get("jobs") or len(os.sched_getaffinity(0))
    return _nested(values)


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


def _home(folder: Path) -> Path:
    return CHECKOUT if (CHECKOUT / "inputs").is_dir() else folder


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
        if (struct := _section(name)) is not None:
            if not isinstance(value, Mapping):
                raise ConfigError(f"{origin}: {name}: expected a table, such as [{name}]")
            for field, inner in value.items():
                if field not in struct.__struct_fields__:
                    known = struct.__struct_fields__
                    raise ConfigError(f"{origin}: {name}: {_unknown(field, known)}")
                settings[f"{name}.{field}"] = inner
        elif name in TYPES:
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


def _nested(values: Mapping[str, Any]) -> Settings:
    fields: dict[str, Any] = {name: value for name, value in values.items() if "." not in name}
    sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for name, value in values.items():
        section, dot, field = name.partition(".")
        if dot:
            sections.setdefault(section, {})[field] = value
    tables = {
        name: struct(**inner) for name, inner in sections.items() if (struct := _section(name))
    }
    fields |= {name: tables.pop(name) for name in SECTIONS}
    return Settings(**fields | {"of_extras": tables})


def _parsed(text: str, kind: Any) -> Any:
    """The text of a variable, converted to the type of its setting if that is possible."""
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(plain) is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    if plain not in (int, float, bool, Shapes):
        return text
    try:
        return msgspec.convert(text, plain, strict=False)
    except msgspec.ValidationError:
        return text


def _merge(values: dict[str, Any], changes: Mapping[str, Any], origin: str, home: Path) -> None:
    """Check settings by dotted name and replace existing values with them."""
    for name, value in changes.items():
        checked = _checked(name, value, _type_of(name), origin)
        values[name] = _rooted(checked, home) if _is_path(name) else checked


def _checked(name: str, value: Any, kind: Any, origin: str) -> Any:
    try:
        return msgspec.convert(value, kind)
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


def all_sections() -> dict[str, type[msgspec.Struct]]:
    """Table of compilewatch.toml -> its struct, of the core and of the extras that are here."""
    return SECTIONS | {
        name: plugins.load(reference) for name, reference in extras.rows("settings").items()
    }


def all_types() -> dict[str, Any]:
    """Setting, by dotted name, -> the type of its value, of the core and of the extras here."""
    return TYPES | {
        f"{section}.{field}": kind
        for section, struct in all_sections().items()
        if section not in SECTIONS
        for field, kind in _types(struct).items()
    }


def _section(name: str) -> type[msgspec.Struct] | None:
    """The struct of a table, which is imported if it is of an extra; None for no table."""
    if name in SECTIONS:
        return SECTIONS[name]
    reference = extras.rows("settings").get(name)
    return plugins.load(reference) if reference else None


def _type_of(name: str) -> Any:
    """The type of a setting's value by its dotted name; None for an unknown setting."""
    section, _, field = name.rpartition(".")
    if name in TYPES or not section or section in SECTIONS:
        return TYPES.get(name)
    struct = _section(section)
    return _types(struct).get(field) if struct else None


def _is_path(name: str) -> bool:
    section, _, field = name.rpartition(".")
    return name in PATHS or field in getattr(_section(section), "paths", ())


def _of_missing(name: str) -> bool:
    """Whether a table, or a setting as variables name it, is of an extra that is not here."""
    here = extras.rows("settings")
    tables = (table for extra in extras.EXTRAS.values() for table in extra.settings)
    return any(f"{name}_".startswith(f"{table}_") for table in tables if table not in here)


@functools.cache
def _types(struct: type[msgspec.Struct]) -> Mapping[str, Any]:
    hints = get_type_hints(struct, include_extras=True)
    return {field: hints[field] for field in struct.__struct_fields__ if field != "of_extras"}


SECTIONS: dict[str, type[msgspec.Struct]] = {
    name: kind
    for name, kind in _types(Settings).items()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
}
"""Table of compilewatch.toml -> its struct, those of the core."""

TYPES: dict[str, Any] = {
    **{name: kind for name, kind in _types(Settings).items() if name not in SECTIONS},
    **{
        f"{section}.{field}": Annotated[kind, Meta(gt=0)] if struct is Deadlines else kind
        for section, struct in SECTIONS.items()
        for field, kind in _types(struct).items()
    },
}
"""Setting of the core, by dotted name, -> the type of its value."""
