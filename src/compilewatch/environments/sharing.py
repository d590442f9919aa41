"""Sharing the files of installed packages between environments with hard links.

torch takes five gigabytes. An environment that needs a release which another one has gets links to
its files: they take no further space, and deleting either environment leaves the other intact,
because pip replaces files and never writes into them. On another file system they are copied.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

Packages = Mapping[str, metadata.Distribution]
"""The distributions of a folder by their canonical names."""


def packages_in(folder: Path) -> dict[str, metadata.Distribution]:
    """Return the distributions that are installed in a package folder."""
    packages: dict[str, metadata.Distribution] = {}
    for distribution in metadata.distributions(path=[str(folder)]):
        # An interrupted installation may leave metadata without a name. A package with an address
        # was installed from a folder, where it may change.
        if (name := distribution.metadata["Name"]) and distribution.read_text(
            "direct_url.json"
        ) is None:
            packages.setdefault(canonicalize_name(name), distribution)
    return packages


def release_in(folder: Path, package: str) -> str | None:
    """Return the version of a package in a package folder, None if it is not there."""
    distribution = next(iter(metadata.distributions(name=package, path=[str(folder)])), None)
    return distribution.version if distribution is not None else None


def share(source: Path, into: Path, roots: Iterable[str]) -> tuple[str, ...]:
    """Link packages and all that they need into another package folder; return their names.

    Packages that are installed there already are left as they are, and so is what `source` lacks.
    Raises OSError, such as on a full disk.
    """
    known, present = packages_in(source), packages_in(into)
    shared = []
    for name in needed(known, roots):
        if name not in present:
            _link(known[name], source, into)
            shared.append(name)
    return tuple(shared)


def needed(known: Packages, roots: Iterable[str]) -> tuple[str, ...]:
    """Return the names of packages and of everything that they require, as far as it is known."""
    waiting = [(str(canonicalize_name(name)), frozenset[str]()) for name in roots]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = waiting.pop()
        if name not in known or (name, extras) in seen:
            continue
        seen.add((name, extras))
        waiting += _required(known[name], extras)
    return tuple(dict.fromkeys(name for name, _ in sorted(seen, key=lambda one: one[0])))


def _required(
    installed: metadata.Distribution, extras: frozenset[str]
) -> Iterator[tuple[str, frozenset[str]]]:
    for text in installed.requires or ():
        with contextlib.suppress(InvalidRequirement):
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": e}) for e in ("", *extras)):
                yield canonicalize_name(requirement.name), frozenset(requirement.extras)


def _link(installed: metadata.Distribution, source: Path, into: Path) -> None:
    """Link the files that a package's RECORD names, but for scripts, which name an interpreter."""
    for file in sorted(installed.files or (), key=_metadata_last):
        if ".." in file.parts or file.is_absolute() or not (source / file).is_file():
            continue
        link = into / file
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)  # an interrupted copy may have left a part of it
        try:
            os.link(source / file, link)
        except OSError:
            shutil.copy2(source / file, link)


def _metadata_last(file: metadata.PackagePath) -> bool:
    """Without metadata a package is not installed: an interrupted link is begun again."""
    return any(part.endswith(".dist-info") for part in file.parts)
