"""Facts about an interpreter, kept until the interpreter changes.

Finding them out needs an import of torch, which would be most of the time of `list-targets` and
`doctor`. Facts are stored in the user's cache folder, each with a digest of everything it depends
on: the interpreter, the modification times of its package folders, this version of compilewatch and
the variables that a worker would see.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import site
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from compilewatch import __version__
from compilewatch.errors import StoreError
from compilewatch.files import DamagedError, from_json, write_atomically
from compilewatch.records import HARNESS_VERSION, Record, now

if TYPE_CHECKING:
    from compilewatch.environments import Interpreter

T = TypeVar("T")

SOURCES = ("contract", "neuron", "worker/process", "worker/targets")
"""Folders of compilewatch whose code determines facts; a checkout can change without a new version.
"""


class Fact(Record, frozen=True, kw_only=True):
    """One fact: the digest of what it depends on, the time when it was found, and its value."""

    depends_on: str
    checked_at: str
    value: msgspec.Raw


def remembered(
    what: str,
    name: str,
    chosen: Interpreter,
    kind: type[T],
    check: Callable[[], T],
    *,
    cache: Path,
    fresh: bool = False,
) -> tuple[T, str]:
    """The fact `what` about environment `name` in the folder `cache`, and its time (UTC).

    `check` is called if there is no stored fact, if the environment has changed since, or with
    `fresh`. Its exceptions propagate, and then nothing is stored.
    """
    path = _folder(name, chosen, cache) / f"{what}.json"
    depends_on = _digest(chosen)
    if not fresh:
        with contextlib.suppress(OSError, DamagedError):
            fact = from_json(path.read_bytes(), Fact)
            if fact.depends_on == depends_on:
                return from_json(bytes(fact.value), kind), fact.checked_at
    value = check()
    checked_at = now()
    fact = Fact(
        depends_on=depends_on, checked_at=checked_at, value=msgspec.Raw(msgspec.json.encode(value))
    )
    with contextlib.suppress(StoreError):  # without a writable cache, facts are found again
        write_atomically(path, msgspec.json.encode(fact), durable=False)
    return value, checked_at


def forget(name: str, chosen: Interpreter, cache: Path) -> None:
    """Delete all stored facts about an environment."""
    for path in _folder(name, chosen, cache).glob("*.json"):
        path.unlink(missing_ok=True)


def _folder(name: str, chosen: Interpreter, cache: Path) -> Path:
    text = "\0".join((name, chosen.path, chosen.device))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return cache / "facts" / f"{name}-{digest}"


def _digest(chosen: Interpreter) -> str:
    times = []
    for path in _looked_at(chosen):
        with contextlib.suppress(OSError):
            times.append((str(path), path.stat().st_mtime_ns))
    programs = [shutil.which(name) for name in (os.environ.get("CXX", "g++"), "neuronx-cc")]
    seen = [dict(chosen.variables), os.environ.get("PYTHONPATH", ""), programs]
    facts = [__version__, HARNESS_VERSION, seen, sorted(set(times))]
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()


def _looked_at(chosen: Interpreter) -> Iterator[Path]:
    """The files and folders whose change may change a fact; they need not exist."""
    python = Path(chosen.path)
    yield python
    prefix = python.parent.parent
    if chosen.path == sys.executable:
        prefix = Path(sys.prefix)
        yield from map(Path, site.getsitepackages())
        # A torch that is built in its checkout can change while the package folders do not.
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.origin is not None:
            yield Path(spec.origin).with_name("version.py")
    yield prefix / "pyvenv.cfg"
    yield from prefix.glob("lib/python*/site-packages")
    yield from map(Path, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    yield from Path("/dev").glob("neuron*")
    package = Path(__file__).parents[1]
    for folder in SOURCES:
        yield from (package / folder).rglob("*.py")
