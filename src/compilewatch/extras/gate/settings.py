"""What fails a check: settings of `pyproject.toml`, the marker of a test, keywords of a call."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compilewatch.errors import ConfigError, UsageError, did_you_mean
from compilewatch.extras.gate.baseline import NAME
from compilewatch.extras.gate.judgement import Rules

RULES = ("own", "third_party", "recompilations", "captured_share", "fullgraph")


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
    for name in table:
        if name not in (*RULES, "baseline"):
            hint = did_you_mean(name, (*RULES, "baseline"))
            raise ConfigError(f"{path}: [tool.compilewatch] has no setting {name!r}{hint}")
    return dict(table)


def baseline_path(root: Path, settings: Mapping[str, Any], option: str | None) -> Path:
    """Return where the baseline is: an option of pytest, the setting, or the default name."""
    return root / (option or settings.get("baseline") or NAME)


def rules_of(root: Path, *levels: Mapping[str, Any]) -> Rules:
    """Return the rules of a call; the last of `levels` that has one wins. Raises UsageError."""
    values: dict[str, Any] = {}
    for level in levels:
        values |= {k: v for k, v in level.items() if k in RULES and v is not None}
    own = values.get("own", ())
    values["own"] = (own,) if isinstance(own, str) else tuple(own)
    if values.get("third_party", "report") not in ("report", "fail"):
        raise UsageError(f"third_party is 'report' or 'fail', not {values['third_party']!r}")
    return Rules(root=root, **values)
