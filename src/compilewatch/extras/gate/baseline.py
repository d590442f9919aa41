"""The graph breaks that a repository knows: a file in it, which a reviewer reads in a diff.

A break is known by file, function and code, so that moved lines, new names of variables and another
version of torch change nothing. The file has neither line numbers nor versions nor paths of a
machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from compilewatch.errors import ConfigError
from compilewatch.files import write_atomically

SCHEMA = 1

NAME = "compilewatch.baseline.json"

Identity = tuple[str, str, str]
"""File, qualified name of the function, and code of a break."""


@dataclass(frozen=True, kw_only=True, order=True)
class KnownBreak:
    """One known break.

    `file` is relative to the root of the repository, `function` is qualified (`Model.forward`),
    `reason` is one line. `places` counts the lines of that function which break for that reason in
    one check, and `checks` are the tests that meet it.
    """

    file: str
    function: str
    code: str
    reason: str = ""
    places: int = 1
    checks: tuple[str, ...] = ()

    @property
    def identity(self) -> Identity:
        return (self.file, self.function, self.code)


def load(path: Path) -> dict[Identity, KnownBreak]:
    """Return the known breaks; none if there is no file. Raises ConfigError for a damaged one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}): repair it, or delete it and run pytest with "
            "--compilewatch-update"
        ) from None
    schema = content.get("schema") if isinstance(content, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise ConfigError(
            f"{path}: written by a newer compilewatch (schema {schema}, this one reads {SCHEMA}): "
            "upgrade compilewatch"
        )
    try:
        found = [
            KnownBreak(**entry | {"checks": tuple(entry.get("checks", ()))})
            for entry in content["breaks"]
        ]
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"{path}: not a baseline of compilewatch: delete it and run pytest with "
            "--compilewatch-update"
        ) from None
    return {each.identity: each for each in found}


def save(path: Path, known: Iterable[KnownBreak]) -> None:
    """Write the known breaks in order; without any, the file has an empty list."""
    entries = [asdict(each) for each in sorted(known)]
    text = json.dumps({"schema": SCHEMA, "breaks": entries}, indent=2, ensure_ascii=False)
    write_atomically(path, text.encode() + b"\n")


def renewed(
    before: Mapping[Identity, KnownBreak],
    met: Mapping[str, Iterable[KnownBreak]],
) -> dict[Identity, KnownBreak]:
    """Return the baseline after a session: `met` has for each check that ran what it met.

    What only other checks meet stays as it was.
    """
    left: dict[Identity, KnownBreak] = {}
    for known in before.values():
        checks = tuple(check for check in known.checks if check not in met)
        if checks:
            left[known.identity] = replace(known, checks=checks)
    for check, breaks in met.items():
        for each in breaks:
            old = left.get(each.identity)
            left[each.identity] = replace(
                each,
                places=max(each.places, old.places if old is not None else 0),
                checks=tuple(sorted({check, *(old.checks if old is not None else ())})),
            )
    return left


def resolved(
    before: Mapping[Identity, KnownBreak],
    met: Mapping[str, Iterable[KnownBreak]],
) -> tuple[KnownBreak, ...]:
    """Return the known breaks whose checks all ran, and which none of them met."""
    seen = {each.identity for breaks in met.values() for each in breaks}
    return tuple(
        known
        for known in sorted(before.values())
        if known.checks and set(known.checks) <= met.keys() and known.identity not in seen
    )
