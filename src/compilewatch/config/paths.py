"""The paths of the reviewed inputs and of the user's cache on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PULLED = Path("pulled/models.toml")
"""The list that `compilewatch pull` writes, in the folder of inputs."""

_CHECKOUT = Path(__file__).resolve().parents[3]


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
    there = _CHECKOUT / "inputs"
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
