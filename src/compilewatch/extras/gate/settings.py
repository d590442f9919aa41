"""What fails a check: settings of `pyproject.toml`, the marker of a test, keywords of a call."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from compilewatch.errors import ConfigError, UsageError, did_you_mean
from compilewatch.extras.gate.baseline import NAME

SETTINGS: dict[str, tuple[str, tuple[type, ...]]] = {
    "own": ("a name or a list of names", (str, list, tuple, set, frozenset)),
    "third_party": ("'report' or 'fail'", (str,)),
    "recompilations": ("a whole number", (int,)),
    "captured_share": ("a number from 0 to 1", (int, float)),
    "fullgraph": ("true or false", (bool,)),
    "numerics": ("true or false", (bool,)),
    "baseline": ("a path", (str,)),
    "models": ("a list of models", (list,)),
    "manifest": ("a path", (str,)),
}
"""What each setting may be, in words and as types."""

RULES = tuple(SETTINGS)[:6]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What fails a check.

    `own` are packages whose breaks count, beside the own code of the repository at `root`.
    `recompilations` is how many are accepted, `captured_share` the smallest share (0 to 1); None
    accepts any. `numerics` compares the results with eager mode.
    """

    root: Path
    own: tuple[str, ...] = ()
    third_party: Literal["report", "fail"] = "report"
    recompilations: int | None = None
    captured_share: float | None = None
    fullgraph: bool = False
    numerics: bool = False


def project_settings(root: Path) -> dict[str, Any]:
    """Return the table `[tool.compilewatch]` of a repository. Raises ConfigError."""
    path = root / "pyproject.toml"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    table = content.get("tool", {}).get("compilewatch", {})
    for name, value in table.items():
        if name not in SETTINGS:
            hint = did_you_mean(name, SETTINGS)
            raise ConfigError(f"{path}: [tool.compilewatch] has no setting {name!r}{hint}")
        if problem := _problem(name, value):
            raise ConfigError(f"{path}: [tool.compilewatch] {problem}")
    return dict(table)


def project_root(folder: Path) -> Path:
    """Return the repository that a folder is in: the nearest one above with a pyproject.toml.

    Without one, it is the nearest with a `.git`, otherwise the folder itself.
    """
    folder = folder.resolve()
    for mark in ("pyproject.toml", ".git"):
        for parent in (folder, *folder.parents):
            if (parent / mark).exists():
                return parent
    return folder


def _problem(name: str, value: Any) -> str:
    """Say what is wrong with the value of a setting, otherwise ""."""
    words, types = SETTINGS[name]
    wrong = not isinstance(value, types) or (isinstance(value, bool) and bool not in types)
    if name == "third_party":
        wrong = value not in ("report", "fail")
    return f"{name} is {words}, not {value!r}" if wrong else ""


def baseline_path(root: Path, settings: Mapping[str, Any], option: str | None) -> Path:
    """Return where the baseline is: an option of pytest, the setting, or the default name."""
    return root / (option or settings.get("baseline") or NAME)


def rules_of(root: Path, *levels: Mapping[str, Any]) -> Rules:
    """Return the rules of a call; the last of `levels` that has one wins. Raises UsageError."""
    values: dict[str, Any] = {}
    for level in levels:
        values |= {k: v for k, v in level.items() if k in RULES and v is not None}
    for name, value in values.items():
        if problem := _problem(name, value):
            raise UsageError(problem)
    own = values.get("own", ())
    values["own"] = (own,) if isinstance(own, str) else tuple(own)
    return Rules(root=root, **values)
