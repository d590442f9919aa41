"""The list of all environments: which work, which do not, and what to type."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from compilewatch.contract import targets
from compilewatch.environments import (
    INTERPRETERS,
    available,
    create_command,
    describe,
    environment_folder,
)
from compilewatch.errors import InterpreterError
from compilewatch.records import Environment, Record


class State(StrEnum):
    """`unfinished`: its creation was interrupted; `broken`: it does not respond."""

    READY = "ready"
    BROKEN = "broken"
    UNFINISHED = "unfinished"
    NOT_CREATED = "not_created"


class Listed(Record, frozen=True, kw_only=True):
    """One environment. `environment` is its description, None unless it is ready."""

    name: str
    state: State
    environment: Environment | None = None
    advice: str = ""


def listing(cache: Path | None = None, *, fresh: bool = False) -> tuple[Listed, ...]:
    """Those there are, then the unfinished ones, then those that a target would need."""
    found = [_described(name, cache, fresh) for name in available(cache)]
    folders = environment_folder("", cache)
    known = {listed.name for listed in found}
    begun = sorted(path.parent.name for path in folders.glob("*/venv"))
    for name in dict.fromkeys([*begun, *targets.environments()]):
        if name not in known:
            state = State.UNFINISHED if name in begun else State.NOT_CREATED
            found.append(Listed(name=name, state=state, advice=create_command(name)))
    return tuple(found)


def _described(name: str, cache: Path | None, fresh: bool) -> Listed:
    try:
        made = describe(name, cache, fresh=fresh)
        return Listed(name=name, state=State.READY, environment=made)
    except InterpreterError as error:
        command = "make setup" if name in INTERPRETERS else create_command(name)
        return Listed(name=name, state=State.BROKEN, advice=f"{error}; {command}")
