"""Where reviewed inputs and the user's cache lie on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, kw_only=True)
class Places:
    """Files of one command's settings; None means the default place."""

    pulled: Path | None = None
    manifest: Path | None = None
    popularity: Path | None = None
    cache: Path | None = None


def inputs_folder() -> Path:
    """Folder of reviewed input files, absolute; it need not exist.

    `COMPILEWATCH_INPUTS` if set, else `inputs/` of the current folder, else the checkout's.
    """
    if named := os.environ.get("COMPILEWATCH_INPUTS"):
        return Path(named).expanduser().resolve()
    here = Path.cwd() / "inputs"
    return here if here.is_dir() else _CHECKOUT / "inputs"


def cache_folder() -> Path:
    """The user's cache of ours, absolute; it need not exist.

    `COMPILEWATCH_CACHE` if set, else `compilewatch/` in the XDG cache folder.
    Everything in it can be made again: deleting it costs time only.
    """
    if named := os.environ.get("COMPILEWATCH_CACHE"):
        return Path(named).expanduser().resolve()
    # An XDG folder that is not absolute is to be ignored (XDG Base Directory Specification 0.8).
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "compilewatch"
