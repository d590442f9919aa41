"""The list of all environments: which work, which do not, and what to type."""

from __future__ import annotations

import os
from enum import StrEnum

from compilewatch.contract import targets
from compilewatch.environments import (
    INTERPRETERS,
    Environments,
    create_command,
)
from compilewatch.errors import InterpreterError
from compilewatch.records import DEFAULT_ENVIRONMENT, Environment, Record


class EnvironmentState(StrEnum):
    """`unfinished`: its creation was interrupted; `broken`: it does not respond."""

    READY = "ready"
    BROKEN = "broken"
    UNFINISHED = "unfinished"
    NOT_CREATED = "not_created"


class ListedEnvironment(Record, frozen=True, kw_only=True):
    """One environment. `environment` is its description, None unless it is ready."""

    name: str
    state: EnvironmentState
    environment: Environment | None = None
    advice: str = ""


def listing(environments: Environments, *, fresh: bool = False) -> tuple[ListedEnvironment, ...]:
    """Those there are, then the unfinished ones, then those that a target would need."""
    listed_environments = [
        _described(name, environments, fresh) for name in environments.available()
    ]
    folders = environments.folder("")
    known = {listed.name for listed in listed_environments}
    default = next(
        (
            environment.environment
            for environment in listed_environments
            if environment.name == DEFAULT_ENVIRONMENT
        ),
        None,
    )
    if default is not None and default.cuda is not None:
        known.add(targets.CUDA_BUILD)  # it is for what a CPU build cannot do
    begun = sorted(path.parent.name for path in folders.glob("*/venv"))
    for name in dict.fromkeys([*begun, *targets.environments()]):
        if name not in known:
            state = EnvironmentState.UNFINISHED if name in begun else EnvironmentState.NOT_CREATED
            listed_environments.append(
                ListedEnvironment(name=name, state=state, advice=create_command(name))
            )
    return tuple(listed_environments)


class Size(Record, frozen=True, kw_only=True):
    """Bytes of an environment's files: its own, and those that are shared with others."""

    own_bytes: int
    shared_bytes: int


def size_of(environments: Environments, name: str) -> Size:
    """Return what a created environment takes; files with several links are shared."""
    own = shared = 0
    for folder, _, files in os.walk(environments.folder(name)):
        for file in files:
            status = os.lstat(os.path.join(folder, file))  # noqa: PTH118  of 30,000 files
            if status.st_nlink > 1:
                shared += status.st_size
            else:
                own += status.st_size
    return Size(own_bytes=own, shared_bytes=shared)


def _described(name: str, environments: Environments, fresh: bool) -> ListedEnvironment:
    try:
        environment = environments.describe(name, fresh=fresh)
        return ListedEnvironment(name=name, state=EnvironmentState.READY, environment=environment)
    except InterpreterError as error:
        command = "make setup" if name in INTERPRETERS else create_command(name)
        return ListedEnvironment(
            name=name, state=EnvironmentState.BROKEN, advice=f"{error}; {command}"
        )
