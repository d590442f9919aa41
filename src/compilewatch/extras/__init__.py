"""What is built on the core, one folder each, and what pip installs on demand, one row each.

`pip install 'compilewatch[NAME]'` installs a row; the core needs none of them. A module of an extra
imports its packages at its top; what the core, a `--help` or another extra imports must not import
such a module before it is used. Where a command or a row of a table is loaded, a missing package
becomes one line that says what to install.
"""

from __future__ import annotations

from typing import NamedTuple


class Extra(NamedTuple):
    """The modules of the packages that an extra installs, and the commands that need them."""

    modules: tuple[str, ...]
    commands: tuple[str, ...] = ()


EXTRAS: dict[str, Extra] = {
    "publish": Extra(modules=("boto3", "logging_loki", "requests", "tenacity")),
    "transformers": Extra(
        modules=("transformers", "huggingface_hub", "httpx2", "PIL", "scipy", "tenacity"),
        commands=("pull",),
    ),
    "profiles": Extra(modules=("matplotlib", "numpy", "psutil", "scipy"), commands=("profile",)),
    "papers": Extra(
        modules=("boto3", "opensearchpy", "pypdf", "scipy", "sklearn", "tenacity"),
        commands=("papers",),
    ),
    "executor": Extra(
        modules=("boto3", "httpx2", "starlette", "tenacity", "uvicorn"),
        commands=("executor", "trainium"),
    ),
    "cluster": Extra(modules=("ray",)),
    "gpu": Extra(modules=("pynvml",)),
    "monitor": Extra(modules=("streamlit",), commands=("monitor",)),
}
"""If several have a module, the first one is named to whoever uses none of their commands."""

COMMANDS: dict[str, str] = {
    "gate": "compilewatch.extras.gate.command",
    "init": "compilewatch.extras.gate.init",
}
"""Command -> the module of an extra that has it as `command`; it is imported when it is called."""

_PART_OF = {"botocore": "boto3"}
"""Modules that come with another one's package."""


def extra_with(module: str, command: str = "") -> str | None:
    """Return the extra that installs a module; of several, that of the command if it has it."""
    module = _PART_OF.get(module, module)
    having = [name for name, extra in EXTRAS.items() if module in extra.modules]
    mine = (name for name in having if command in EXTRAS[name].commands)
    return next(mine, next(iter(having), None))


def install(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'compilewatch[{extra}]'"
