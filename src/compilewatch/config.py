"""Settings: defaults, then compilewatch.toml, COMPILEWATCH_* variables and options; the last wins.

`compilewatch.toml` in the checkout documents each setting. An invalid name or value raises
ConfigError, which names the file (or variable) and the setting.
"""

import functools
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from compilewatch.contract.messages import PLAIN_TORCH
from compilewatch.errors import ConfigError, ExecutorError, did_you_mean
from compilewatch.files import toml_table
from compilewatch.records import Deadlines, Depth, Mode, Tier, Variants

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
    "expectations_file": "expectations.toml",
    "trainium.prices_file": "trainium_prices.toml",
    "papers.folder": "papers/library",
    "papers.rules_file": "papers/rules.toml",
    "papers.prices_file": "papers/prices.toml",
    "papers.replies_dir": "papers/replies",
    "executor.token_file": "",
    "executor.certificates": "",
    "executor.state": "",
}
"""Settings that are paths, and their default names in the folder `inputs`."""

Shapes = bool | Literal["default"]


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


class ServiceSettings(SettingsSection, frozen=True, kw_only=True):
    """A service with an address and perhaps a user."""

    url: str = ""
    username: str = ""
    password: str = ""


class PushgatewaySettings(ServiceSettings, frozen=True, kw_only=True):
    replace: bool = False


class S3Settings(SettingsSection, frozen=True, kw_only=True):
    url: str = ""
    endpoint_url: str = ""


class PublishSettings(SettingsSection, frozen=True, kw_only=True):
    timeout_seconds: Annotated[float, Meta(gt=0)] = 30.0
    retry_seconds: Annotated[float, Meta(ge=0)] = 30.0


class TrainiumSettings(SettingsSection, frozen=True, kw_only=True):
    instance: str = ""
    tag: str = "compilewatch=trainium"
    region: str = ""
    profile: str = ""
    host: str = ""
    ssh_port: Annotated[int, Meta(ge=1, le=65535)] = 22
    ready_seconds: Annotated[float, Meta(gt=0)] = 900.0
    stop_seconds: Annotated[float, Meta(gt=0)] = 600.0
    poll_seconds: Annotated[float, Meta(gt=0)] = 15.0
    attempts: Annotated[int, Meta(ge=1)] = 5
    prices_file: str = ""


class ExecutorSettings(SettingsSection, frozen=True, kw_only=True):
    endpoint: str = ""
    token: str = ""
    token_file: str = ""
    certificates: str = ""
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    state: str = ""
    environment: str = "default"
    concurrency: Annotated[int, Meta(ge=1, le=64)] = 1
    max_seconds: Annotated[float, Meta(gt=0, le=86_400)] = 3600.0
    max_memory_gib: Annotated[float, Meta(gt=0)] = 8.0
    keep_days: Annotated[float, Meta(gt=0)] = 30.0
    visible: tuple[str, ...] = ()

    def secret(self) -> str:
        """The token: of its file, if one is named; empty: none. Raises ExecutorError."""
        if not self.token_file:
            return self.token
        try:
            return Path(self.token_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ExecutorError(f"{self.token_file} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ExecutorError(
                f"{self.token_file} is not text: it must hold the token only"
            ) from None


class AwsSettings(SettingsSection, frozen=True, kw_only=True):
    """How a service of AWS is reached; empty: as the SDK of AWS finds it."""

    region: str = ""
    profile: str = ""
    endpoint_url: str = ""


class PapersSettings(AwsSettings, frozen=True, kw_only=True):
    library: Literal["auto", "folder", "opensearch"] = "auto"
    folder: str = ""
    opensearch_endpoint: str = ""
    opensearch_index: str = "research-papers-v2"
    s3_endpoint_url: str = ""
    provider: Literal["bedrock", "scripted"] = "bedrock"
    model: str = ""
    rules_file: str = ""
    prices_file: str = ""
    replies_dir: str = ""
    max_paper_tokens: Annotated[int, Meta(ge=500)] = 40_000
    max_repairs: Annotated[int, Meta(ge=0, le=3)] = 3
    device_seconds: Annotated[float, Meta(gt=0)] = 1800.0
    environment: str = ""
    usd_per_hour: Annotated[float, Meta(ge=0)] = 0.0


class CloudWatchSettings(AwsSettings, frozen=True, kw_only=True):
    enabled: bool = False
    namespace: str = "Trainium/Training"
    instance_type: str = "trn2.3xlarge"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See compilewatch.toml. As returned by `load_settings`, paths are absolute and `jobs` >= 1."""

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
    train_top: Annotated[int, Meta(ge=0)] = 0
    first: tuple[str, ...] = ()
    dynamic: Shapes = "default"
    shapes: bool = False
    nested_graph_breaks: Literal["default", "on", "off"] = "default"
    numerics: bool = False
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
    expectations_file: str = ""
    pushgateway: PushgatewaySettings = PushgatewaySettings()
    loki: ServiceSettings = ServiceSettings()
    s3: S3Settings = S3Settings()
    publish: PublishSettings = PublishSettings()
    trainium: TrainiumSettings = TrainiumSettings()
    papers: PapersSettings = PapersSettings()
    cloudwatch: CloudWatchSettings = CloudWatchSettings()
    executor: ExecutorSettings = ExecutorSettings()
    deadlines: Deadlines = Deadlines()

    @property
    def all_targets(self) -> tuple[str, ...]:
        """The names of the targets, with that of the setting `numerics`."""
        return (*self.targets, *(("numerics",) if self.numerics else ()))

    @property
    def cache_folder(self) -> Path | None:
        """The folder of environments and scans; None means the user's cache folder."""
        return Path(self.cache) if self.cache else None

    @property
    def chosen_dynamic(self) -> bool | None:
        """The argument `dynamic` of `torch.compile`."""
        return None if self.dynamic == "default" else self.dynamic

    @property
    def memory_limit_bytes(self) -> int:
        return int(self.memory_limit_gib * 2**30)


SECTIONS: dict[str, type[msgspec.Struct]] = {
    field.name: field.type
    for field in msgspec.structs.fields(Settings)
    if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
}
"""Table of compilewatch.toml -> its struct."""


@functools.cache
def all_types() -> dict[str, Any]:
    """Setting, by dotted name (`jobs`, `loki.url`), -> the type of its value."""
    types = {
        field.name: field.type
        for field in msgspec.structs.fields(Settings)
        if field.name not in SECTIONS
    }
    for name, struct in SECTIONS.items():
        for field in msgspec.structs.fields(struct):
            kind = Annotated[field.type, Meta(gt=0)] if struct is Deadlines else field.type
            types[f"{name}.{field.name}"] = kind
    return types


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
    # That of the folder, of the nearest one above it, or of the checkout.
    candidates = (place / FILE for place in (folder, *folder.parents, CHECKOUT))
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    checkout = CHECKOUT if (CHECKOUT / "inputs").is_dir() else folder
    home = path.parent if path is not None else checkout
    # By dotted name, `loki.url`.
    values: dict[str, Any] = {name: _rooted(value_of(Settings(), name), home) for name in PATHS}

    def put(name: str, value: Any, origin: str, home: Path, *, strict: bool = True) -> None:
        value = _checked(name, value, origin, strict=strict)
        values[name] = _rooted(value, home) if name in PATHS else value

    for name, value in _from_file(path) if path is not None else ():
        put(name, value, str(path), home)
    for variable, text in sorted((os.environ if environ is None else environ).items()):
        if variable.startswith(PREFIX) and variable != PLAIN_TORCH:
            name = _dotted(variable.removeprefix(PREFIX).lower(), variable)
            kind = all_types()[name]
            is_list = get_origin(get_args(kind)[0] if get_origin(kind) is Annotated else kind)
            parts = [part.strip() for part in text.split(",") if part.strip()]
            put(name, parts if is_list is tuple else text, variable, folder, strict=False)
    origin = "the command line"
    for name, value in (overrides or {}).items():
        if name in SECTIONS and value is not None:
            for field, inner in msgspec.to_builtins(value).items():
                put(f"{name}.{field}", inner, origin, folder)
        elif value is not None:
            put(_dotted(name, origin), value, origin, folder)
    for name, default in PATHS.items():
        if not values[name] and default:
            values[name] = str(Path(values["inputs"]) / default)
    values["jobs"] = values.get("jobs") or len(os.sched_getaffinity(0))
    tables: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for name, value in values.items():
        table, _, field = name.rpartition(".")
        tables[table][field] = value
    fields = tables.pop("")
    fields |= {name: SECTIONS[name](**table) for name, table in tables.items()}
    return Settings(**fields)


@dataclass(frozen=True, kw_only=True)
class Places:
    """The settings of a command, whose files sources read, and the Transformers that they read.

    `transformers` is its package folder, beside which the other packages of its `environment` are.
    """

    settings: Settings
    transformers: Path | None = None
    environment: str = ""

    @property
    def pulled(self) -> Path:
        """The list that `compilewatch pull` writes."""
        return Path(self.settings.pulled_dir) / "models.toml"


def value_of(settings: Settings, name: str) -> Any:
    """The value of a setting by its dotted name, `loki.url`."""
    section, _, field = name.rpartition(".")
    return getattr(getattr(settings, section) if section else settings, field)


def where_to_set(name: str) -> str:
    """`url in the table [loki] of compilewatch.toml, or COMPILEWATCH_LOKI_URL`."""
    section, _, field = name.partition(".")
    variable = f"{PREFIX}{section}_{field}".upper()
    return f"{field} in the table [{section}] of {FILE}, or {variable}"


def _from_file(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a file by dotted name: `jobs`, `loki.url`."""
    for name, value in toml_table(path).items():
        if (struct := SECTIONS.get(name)) is None:
            section, _, field = _dotted(name, str(path)).rpartition(".")
            if section:
                raise ConfigError(
                    f"{path}: {name}: write it as `{field}` in the table [{section}], below all "
                    "settings that belong to no table"
                )
            yield name, value
            continue
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path}: {name}: expected a table, such as [{name}]")
        known = struct.__struct_fields__
        for field, inner in value.items():
            if field not in known:
                hint = did_you_mean(field, known)
                raise ConfigError(f"{path}: {name}: unknown setting {field!r}{hint}")
            yield f"{name}.{field}", inner


def _dotted(name: str, origin: str) -> str:
    """`loki.url` for `loki_url`, the name in variables and options. Raises ConfigError."""
    known = {setting.replace(".", "_"): setting for setting in all_types()}
    if name not in known:
        raise ConfigError(f"{origin}: unknown setting {name!r}{did_you_mean(name, known)}")
    return known[name]


def _checked(name: str, value: Any, origin: str, *, strict: bool) -> Any:
    """The value of a setting; unless `strict`, texts are numbers and booleans too."""
    kind = all_types()[name]
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
