"""The graph breaks that a repository knows: a file in it, which a reviewer reads in a diff.

A break is known by file, function, code and statement, so that moved lines and another version of
torch change nothing. Each is one line of the file: git merges those of two branches.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from compilewatch.errors import ConfigError
from compilewatch.files import write_atomically

SCHEMA = 2

NAME = "compilewatch.baseline.json"

ATTRIBUTES = ".gitattributes"

_CONFLICT = re.compile(r"^(<{7}|={7}|>{7})( .*)?$", re.MULTILINE)

_UPDATE = "pytest with --compilewatch-update, or compilewatch gate --update"

Identity = tuple[str, str, str, str]
"""File, qualified name of the function, code and statement of a break."""


@dataclass(frozen=True, kw_only=True, order=True)
class KnownBreak:
    """One known break; two equal statements of a function that break are two.

    `file` is relative to the root of the repository, `function` is qualified (`Model.forward`),
    `code` and `reason` are torch's, and `text` is the statement without the block below it.
    `check` is the first one that met it. `why` it was accepted and a `link` are for people to fill
    in.
    """

    file: str
    function: str
    code: str
    text: str
    reason: str = ""
    check: str = ""
    why: str = ""
    link: str = ""

    @property
    def identity(self) -> Identity:
        return (self.file, self.function, self.code, self.text)

    def __str__(self) -> str:
        return f"{self.reason or self.code} in {self.function}, {self.file}: {self.text}"


Met = Mapping[str, Sequence[tuple[KnownBreak, KnownBreak | None]]]
"""What each check met, by its name, with the entry of the baseline that it is."""


def load(path: Path) -> tuple[KnownBreak, ...]:
    """Return the known breaks in order; none if there is no file.

    Raises ConfigError for a file that is damaged, of another version, or in conflict.
    """
    again = f"delete it and run {_UPDATE}"
    try:
        text = path.read_text(encoding="utf-8")
        if _CONFLICT.search(text):
            raise ConfigError(
                f"{path}: has conflict markers of a merge: delete them, and keep the lines of both "
                "sides"
            )
        content = json.loads(text)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}): repair it, or {again}") from None
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema is not None and schema != SCHEMA:
        raise ConfigError(
            f"{path}: written by another compilewatch (schema {schema}, this one reads {SCHEMA}): "
            f"upgrade compilewatch, or {again}"
        )
    try:
        entries = (KnownBreak(**entry) for entry in content["breaks"] if entry)
        return tuple(sorted(entries))
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path}: not a baseline of compilewatch: {again}") from None


def save(path: Path, known: Iterable[KnownBreak]) -> tuple[str, ...]:
    """Write the known breaks, each in a line, in order; return the names of the changed files.

    Raises OSError.

    Every line of a break ends alike, since a last one without a comma would be a conflict of any
    two additions. A new file gets its line in .gitattributes: git then keeps what both sides add.
    """
    lines = [json.dumps(_entry(entry), ensure_ascii=False) for entry in sorted(known)]
    text = "\n".join(
        [f'{{"schema": {SCHEMA}, "breaks": [', *(f"{line}," for line in lines), "{}]}\n"]
    )
    new = not path.exists()
    if not new and path.read_bytes() == text.encode():
        return ()
    write_atomically(path, text.encode())
    attributes = path.with_name(ATTRIBUTES)
    before = attributes.read_text(encoding="utf-8") if attributes.exists() else ""
    if new and path.name not in before:
        start = "\n" if before and not before.endswith("\n") else ""
        write_atomically(attributes, f"{before}{start}{path.name} merge=union\n".encode())
        return path.name, ATTRIBUTES
    return (path.name,)


def _entry(known: KnownBreak) -> dict[str, Any]:
    values = {field.name: getattr(known, field.name) for field in fields(known)}
    return {name: value for name, value in values.items() if value}


@dataclass(frozen=True, kw_only=True)
class Renewal:
    """What a session means for a baseline.

    `known` is the renewed baseline, `kept` are the entries that its checks may still meet.
    `resolved` are those that no check met, although theirs came to its end, or did not run and
    their statement was removed. Of these, what people have written a reason or a link for stays in
    the file until its check runs: the statement may have moved.
    """

    known: tuple[KnownBreak, ...]
    kept: tuple[KnownBreak, ...]
    resolved: tuple[KnownBreak, ...]


def renewal(
    before: Sequence[KnownBreak],
    met: Met,
    ended: Set[str],
    removed: Callable[[KnownBreak], bool],
) -> Renewal:
    """Return what the checks of a session mean for a baseline.

    `ended` are the checks that came to their end, `removed` says that the repository no longer has
    the statement of a break. What only other checks meet stays as it was.
    """
    places: Counter[Identity] = Counter()
    checks: dict[Identity, list[str]] = {}
    latest: dict[Identity, KnownBreak] = {}
    moved: set[KnownBreak] = set()
    for check, pairs in sorted(met.items()):
        places |= Counter(place.identity for place, _ in pairs)
        for place, old in pairs:
            checks.setdefault(place.identity, []).append(check)
            why, link = (old.why, old.link) if old is not None else ("", "")
            latest.setdefault(place.identity, replace(place, check=check, why=why, link=link))
            if old is not None and old.identity != place.identity:
                moved.add(old)
    kept: list[KnownBreak] = []
    resolved: list[KnownBreak] = []
    for known in sorted(before):
        if places[known.identity] > 0:
            places[known.identity] -= 1
            names = checks[known.identity]
            stays = known.check in names or (known.check and known.check not in ended)
            kept.append(known if stays else replace(known, check=names[0]))
        elif known not in moved:
            over = known.check in ended or (known.check not in met and removed(known))
            (resolved if over else kept).append(known)
    added = [latest[identity] for identity, count in places.items() for _ in range(count)]
    waiting = [k for k in resolved if k.check not in met and (k.why or k.link)]
    renewed = tuple(sorted((*kept, *added, *waiting)))
    return Renewal(known=renewed, kept=tuple(kept), resolved=tuple(resolved))
