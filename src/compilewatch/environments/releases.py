"""The releases of a package that pip can install here, as the package index lists them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable

from packaging.version import InvalidVersion, Version

from compilewatch.errors import InterpreterError, UsageError, did_you_mean

TIMEOUT_SECONDS = 120.0


def releases(package: str, python: str | None = None) -> tuple[Version, ...]:
    """Return the final releases of a package with a wheel for this Python, oldest first.

    pip lists them, so that its configuration (index, certificates, local folders) applies; releases
    that were withdrawn (yanked) are not listed. torch is searched in TORCH_INDEX where that is set.
    Raises InterpreterError if the index lists none, which it also does where it is unreachable.
    """
    command = [python or sys.executable, "-m", "pip", "index", "versions", package]
    command += ["--only-binary", ":all:", "--disable-pip-version-check", "--retries", "1"]
    if package == "torch" and (index := os.environ.get("TORCH_INDEX")):
        command += ["--index-url", index]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
        )
        output, complaints = done.stdout, done.stderr
    except OSError as error:
        raise InterpreterError(f"{command[0]} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired as error:
        output, complaints = "", str(error)
    line = re.search(r"^Available versions: (.*)$", output, re.MULTILINE)
    if line is None:
        unreachable = "Retrying" in complaints or "timed out" in complaints
        if not unreachable and "No matching distribution" not in complaints:
            last = (complaints.strip().splitlines() or ["no message"])[-1]
            raise InterpreterError(f"{command[0]} cannot list the releases of {package}: {last}")
        why = "cannot be reached" if unreachable else "lists no wheel of it for this Python"
        raise InterpreterError(
            f"the releases of {package} are not known, because the package index {why}: check the "
            "network and pip's settings (pip config list)"
        )
    return parsed(line[1].split(","))


def parsed(texts: Iterable[str]) -> tuple[Version, ...]:
    """Return the final releases among these versions, oldest first; others are left out."""
    releases: set[Version] = set()
    for text in texts:
        try:
            version = Version(text.strip())
        except InvalidVersion:
            continue
        if not version.is_prerelease:
            releases.add(version)
    return tuple(sorted(releases))


def check_release(package: str, version: str, python: str | None = None) -> None:
    """Raise UsageError if the index has no wheel of this release for this Python."""
    known = releases(package, python)
    # A local version such as 2.9.0+cpu is the same release as 2.9.0 of another index.
    if Version(version).public not in {release.public for release in known}:
        near = did_you_mean(version, map(str, known), most=3)
        raise UsageError(
            f"{package} {version} does not exist, was withdrawn, or has no wheel for this "
            f"Python{near}; the newest is {known[-1]}"
        )
