"""What an environment is made of: locked requirements, or releases that a person chooses."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compilewatch.contract import targets
from compilewatch.data import REQUIREMENTS
from compilewatch.environments import INTERPRETERS, SUPPORTED_TRANSFORMERS
from compilewatch.errors import InterpreterError, UsageError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

INDEXES = {"neuron": "https://pip.repos.neuron.amazonaws.com"}
"""Environment -> a package index that it needs besides the usual one."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Input of an environment: pins of torch and Transformers, requirements, a further index.

    Without a pin of Transformers, `requirements` is a locked file, which has one. With it, it is a
    list of names: pip then keeps the locked releases, which are linked into the environment first,
    wherever that Transformers permits them, so that two environments differ as little as possible.
    `chosen` are the pins that a person chose, which need not exist, and `further` the packages that
    a person wants besides, in the releases that pip finds for them. `cuda_build` asks for a torch
    that was built for CUDA, from the usual index. `default_torch` says that the torch is that of
    compilewatch itself.
    """

    torch: str
    requirements: Path
    transformers: str | None = None
    index: str | None = None
    chosen: tuple[str, ...] = ()
    further: tuple[str, ...] = ()
    cuda_build: bool = False
    default_torch: bool = False

    @property
    def shares(self) -> bool:
        """Whether packages that another environment has are linked into this one."""
        return bool(self.chosen) or self.cuda_build or self.default_torch

    @property
    def digest(self) -> str:
        """16 hex digits over everything that decides what is installed. Raises InterpreterError."""
        text = "\0".join((self.torch, self._text(), self.index or ""))
        if self.transformers:
            text += f"\0{self.transformers}"
        if self.further:
            text += "\0with " + " ".join(self.further)
        if self.cuda_build:
            text += "\0cuda"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def packages(self) -> tuple[str, ...]:
        """The names of the packages that a worker imports besides torch."""
        return tuple(re.findall(r"^[A-Za-z0-9][A-Za-z0-9._-]*", self._text(), re.MULTILINE))

    def _text(self) -> str:
        try:
            return self.requirements.read_text(encoding="utf-8")
        except OSError as error:
            raise InterpreterError(
                f"{self.requirements} cannot be read ({error.strerror}): install compilewatch again"
            ) from None


def recipe_of(
    name: str,
    torch: str | None = None,
    transformers: str | None = None,
    further: Sequence[str] = (),
) -> Recipe:
    """Return the recipe of an environment; the versions are for one without its own recipe.

    Without `torch`, it has the torch of compilewatch's own lock, and without `transformers` the
    Transformers of that lock. `further` are names of packages, such as timm. Raises UsageError for
    an invalid name or version.
    """
    if name in INTERPRETERS:
        raise UsageError(f"{name!r} is the interpreter that runs compilewatch: make setup")
    if NAME.fullmatch(name) is None:
        raise UsageError(f"environment {name!r}: use letters, digits, dots and dashes")
    if name in targets.environments():
        if torch is not None or transformers is not None:
            option = "--torch" if torch is not None else "--transformers"
            package = option.removeprefix("--")
            raise UsageError(
                f"environment {name!r} has its own version of {package}: omit {option}"
            )
        if further:
            raise UsageError(f"environment {name!r} has its own packages: omit --with")
        return _own_recipe(name)
    if torch is None and transformers is None and not further:
        own = ", ".join(sorted(targets.environments()))
        raise UsageError(
            f"environment {name!r} needs --torch VERSION, such as --torch 2.9.0, --transformers "
            f"VERSION, or --with PACKAGE; environments with their own recipe: {own}"
        )
    versions = {"torch": torch, "transformers": transformers}
    chosen = {p: _checked(p, version) for p, version in versions.items() if version is not None}
    return Recipe(
        torch=chosen.get("torch") or _pin("torch", REQUIREMENTS / "default.txt"),
        requirements=REQUIREMENTS / ("worker.in" if transformers else "worker.txt"),
        transformers=chosen.get("transformers"),
        chosen=tuple(chosen.values()),
        further=tuple(sorted(map(_checked_name, further))),
        default_torch=not chosen,
    )


def _own_recipe(name: str) -> Recipe:
    """Return the recipe of a named environment, whose locked file has everything.

    That of `cuda` is the lock of compilewatch itself; wheels for CUDA exist for Linux only.
    """
    if name == targets.CUDA_BUILD:
        if sys.platform != "linux":
            raise UsageError(
                f"environment {name!r} needs Linux: there are no CUDA wheels for others"
            )
        pin = _pin("torch", REQUIREMENTS / "default.txt")
        return Recipe(torch=pin, requirements=REQUIREMENTS / "worker.txt", cuda_build=True)
    requirements = REQUIREMENTS / f"{name}.txt"
    recipe = Recipe(torch="", requirements=requirements, index=INDEXES.get(name))
    _ = recipe.digest  # raises if the file cannot be read
    pin = _pin("torch", requirements)
    return Recipe(
        torch=pin,
        requirements=requirements,
        index=recipe.index,
        default_torch=name in targets.PACKAGE_ENVIRONMENTS,
    )


def _pin(package: str, locked: Path) -> str:
    text = Recipe(torch="", requirements=locked)._text()
    pins = re.findall(rf"^{package}==\S+", text, re.MULTILINE)
    if len(pins) != 1:
        raise InterpreterError(f"{locked}: expected one line {package}==VERSION")
    return str(pins[0])


def _checked_name(package: str) -> str:
    """Return the name of a package. Raises UsageError."""
    if NAME.fullmatch(package) is None:
        raise UsageError(f"--with {package}: expected the name of a package, such as timm")
    return package


def _checked(package: str, version: str) -> str:
    """Return the pin of a package. Raises UsageError."""
    if re.fullmatch(r"\d+\.\d+(\.\d+)?[A-Za-z0-9.+]*", version) is None:
        raise UsageError(f"--{package} {version}: expected a version such as 2.9.0")
    if package == "transformers" and version not in SUPPORTED_TRANSFORMERS:
        raise UsageError(
            f"--transformers {version}: compilewatch supports {SUPPORTED_TRANSFORMERS} only"
        )
    return f"{package}=={version}"
