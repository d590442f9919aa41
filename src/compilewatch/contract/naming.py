"""The options with which a command names the model of a request again."""

from __future__ import annotations

import shlex
from pathlib import Path

from compilewatch.contract.targets import environment_option
from compilewatch.records import FactoryBuild, Request


def naming_options(request: Request) -> str:
    """Return ` --environment NAME --python-path DIR` as far as they are needed, otherwise "".

    The folder of `./FILE.py` and the current folder are searched without an option, and so are
    those of a model that a list names.
    """
    options = environment_option(request)
    build, alone = request.model.build, _searched_alone(request)
    if isinstance(build, FactoryBuild) and alone is not None:
        folders = (folder for folder in build.python_path if folder != alone)
        options += "".join(f" --python-path {shlex.quote(folder)}" for folder in folders)
    return options


def inputs_option(request: Request) -> str:
    """Return ` --inputs FILE` for a person's own model that was given inputs, otherwise "".

    A model of a list has its inputs there.
    """
    build = request.model.build
    if not isinstance(build, FactoryBuild) or _searched_alone(request) is None:
        return ""
    inputs = build.inputs or request.inputs_file
    return f" --inputs {shlex.quote(inputs)}" if inputs else ""


def _searched_alone(request: Request) -> str | None:
    """The folder that is searched for the model without an option; None for one of a list."""
    name, build = request.model.name, request.model.build
    if not isinstance(build, FactoryBuild):
        return None
    module = build.factory.partition(":")[0]
    if name in (build.factory, module, build.factory.replace(":", ".")):
        return str(Path.cwd().resolve())
    path = name if name.endswith(".py") else name.rpartition(":")[0]
    if not path.endswith(".py"):
        return None
    # A file of a package is imported from the folder that contains the package.
    return str(Path(path).expanduser().resolve().parents[module.count(".")])
