"""Settings: built-in defaults, compilewatch.toml, COMPILEWATCH_* variables, flags; later wins.

`compilewatch.toml` in the checkout documents each of them. A name or value that makes no sense is
a ConfigError that names the file (or variable) and the setting.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from compilewatch.errors import ConfigError, did_you_mean
from compilewatch.records import Deadlines, Depth, Mode, Tier

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
    "trainium_prices_file": "trainium_prices.toml",
}
"""Settings that are paths, and the name inside of `inputs` that an empty one stands for."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What compilewatch.toml documents. From `load_settings`, paths are absolute, `jobs` >= 1."""

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
    dynamic: bool = False
    depth: Depth = Depth.FULL
    tier: Tier = Tier.AUTO
    baseline: str = "auto"
    sinks: tuple[str, ...] = ("html", "junit", "metrics_file")
    pushgateway_url: str = ""
    pushgateway_username: str = ""
    pushgateway_password: str = ""
    loki_url: str = ""
    loki_username: str = ""
    loki_password: str = ""
    s3_url: str = ""
    s3_endpoint_url: str = ""
    publish_timeout_seconds: Annotated[float, Meta(gt=0)] = 30.0
    publish_retry_seconds: Annotated[float, Meta(ge=0)] = 30.0
    inputs: str = "inputs"
    popularity_file: str = ""
    models_file: str = ""
    pulled_dir: str = ""
    overrides_dir: str = ""
    neuron_operators_file: str = ""
    expectations_file: str = ""
    trainium_instance: str = ""
    trainium_tag: str = "compilewatch=trainium"
    trainium_region: str = ""
    trainium_profile: str = ""
    trainium_host: str = ""
    trainium_ssh_port: Annotated[int, Meta(ge=1, le=65535)] = 22
    trainium_ready_command: str = ""
    trainium_ready_seconds: Annotated[float, Meta(gt=0)] = 900.0
    trainium_stop_seconds: Annotated[float, Meta(gt=0)] = 600.0
    trainium_poll_seconds: Annotated[float, Meta(gt=0)] = 15.0
    trainium_attempts: Annotated[int, Meta(ge=1)] = 5
    trainium_prices_file: str = ""
    deadlines: Deadlines = Deadlines()

    @property
    def cache_folder(self) -> Path | None:
        """Where environments and scans are kept; None stands for the user's cache folder."""
        return Path(self.cache) if self.cache else None

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

    `overrides` come from flags, None meaning that a flag was not given. `folder` and `environ`
    stand for the current folder and `os.environ`.
    """
    folder = (folder or Path.cwd()).absolute()
    path = find_file(folder)
    home = path.parent if path is not None else _home(folder)
    defaults = Settings()
    values: dict[str, Any] = {n: _rooted(getattr(defaults, n), home) for n in PATHS}
    deadlines: dict[str, Any] = {}
    if path is not None:
        _merge(values, deadlines, _from_file(path), str(path), home)
    variables = os.environ if environ is None else environ
    for name, value in _from_variables(variables).items():
        _merge(values, deadlines, value, PREFIX + name, folder)
    given = {k: v for k, v in (overrides or {}).items() if v is not None}
    _merge(values, deadlines, given, "the command line", folder)
    for name, default in PATHS.items():
        if not values.get(name) and default:
            values[name] = str(Path(values["inputs"]) / default)
    values["jobs"] = values.get("jobs") or len(os.sched_getaffinity(0))
    return Settings(**values, deadlines=Deadlines(**deadlines))


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
        raise ConfigError(f"{path}: no valid TOML: {error}") from None


def _from_variables(environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Variable (without prefix) -> the settings it means, with lists and tables taken apart."""
    types = _types(Settings)
    found: dict[str, dict[str, Any]] = {}
    for variable in sorted(v for v in environ if v.startswith(PREFIX)):
        name = variable.removeprefix(PREFIX)
        key, text = name.lower(), environ[variable]
        if key.startswith("deadlines_"):
            found[name] = {"deadlines": {key.removeprefix("deadlines_"): _parsed(text, float)}}
        elif key in types:
            found[name] = {key: _parsed(text, types[key])}
        else:
            raise ConfigError(f"{variable}: {_unknown(key, list(types))}")
    return found


def _parsed(text: str, wanted: Any) -> Any:
    """A variable's text as the type that its setting has; text that is not stays text."""
    plain = get_args(wanted)[0] if get_origin(wanted) is Annotated else wanted
    if get_origin(plain) is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    if plain not in (int, float, bool):
        return text
    try:
        return msgspec.convert(text, plain, strict=False)
    except msgspec.ValidationError:
        return text


def _merge(
    values: dict[str, Any],
    deadlines: dict[str, Any],
    given: Mapping[str, Any],
    origin: str,
    home: Path,
) -> None:
    types = _types(Settings)
    for name, value in given.items():
        if name not in types:
            raise ConfigError(f"{origin}: {_unknown(name, list(types))}")
        if name == "deadlines":
            deadlines.update(_deadlines(value, origin))
            continue
        checked = _checked(name, value, types[name], origin)
        values[name] = _rooted(checked, home) if name in PATHS else checked


def _deadlines(value: Any, origin: str) -> dict[str, float]:
    if isinstance(value, Deadlines):
        return msgspec.structs.asdict(value)
    if not isinstance(value, Mapping):
        raise ConfigError(f"{origin}: deadlines: expected a table, such as [deadlines]")
    names = list(Deadlines.__struct_fields__)
    limit = Annotated[float, Meta(gt=0)]
    for name in value:
        if name not in names:
            raise ConfigError(f"{origin}: deadlines: {_unknown(name, names)}")
    return {k: _checked(f"deadlines.{k}", v, limit, origin) for k, v in value.items()}


def _checked(name: str, value: Any, wanted: Any, origin: str) -> Any:
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        message = str(error)
        choices = ", ".join(_choices(wanted))
        hint = f"; use {choices}" if choices and "enum value" in message else ""
        raise ConfigError(f"{origin}: {name}: {message[0].lower()}{message[1:]}{hint}") from None


def _choices(wanted: Any) -> list[str]:
    if get_origin(wanted) is Literal:
        return list(get_args(wanted))
    if isinstance(wanted, type) and issubclass(wanted, StrEnum):
        return [member.value for member in wanted]
    return [choice for part in get_args(wanted)[:1] for choice in _choices(part)]


def _rooted(text: str, home: Path) -> str:
    if not text:
        return text
    return os.path.normpath(home / Path(text).expanduser())


def _unknown(name: str, known: list[str]) -> str:
    return f"unknown setting {name!r}{did_you_mean(name, known)}"


def _types(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(struct, include_extras=True)
