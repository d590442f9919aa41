"""What to open and what to type after a result: its artifacts, and commands that repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from compilewatch.contract.naming import inputs_option, naming_options
from compilewatch.contract.targets import CPU, default_dtype, environment_option
from compilewatch.records import (
    Depth,
    Mode,
    Request,
    Result,
)


def compile_trace(paths: Iterable[str]) -> str | None:
    """The pages that tlparse made of the compile trace, packed."""
    return next((path for path in paths if path.endswith("/tlparse.zip")), None)


def decompressing(result: Result) -> str:
    """What to type for the artifacts as plain files; "" where none is compressed."""
    if not any(path.endswith((".zst", "/tlparse.zip")) for path in result.artifacts):
        return ""
    name = shlex.quote(result.request.model.name)
    return f"compilewatch show {name} --artifacts DIRECTORY"


def commands(request: Request) -> tuple[str, str, str]:
    """What to type to reproduce a result: plain PyTorch, explained, and the same request anew."""
    name = shlex.quote(request.model.name)
    sweep = f"compilewatch sweep --source {request.model.source} --models {name}"
    if request.target.name != "dynamo":
        sweep += f" --targets {request.target.name}"
    if request.target.mode is not Mode.EVAL:
        sweep += f" --modes {request.target.mode.value}"
    sweep += {None: "", True: " --dynamic", False: " --static"}[request.target.dynamic]
    nested = {None: "", True: " --nested-graph-breaks on", False: " --nested-graph-breaks off"}[
        request.target.nested_graph_breaks
    ]
    sweep += nested
    sweep += environment_option(request).replace("--environment", "--environments")
    device = ""
    if request.target.device != CPU:
        device += f" --device {request.target.device}"
    if request.target.dtype is not default_dtype(request.target.device):
        device += f" --dtype {request.target.dtype.value}"
    if request.depth is not Depth.FULL:
        sweep += f" --depth {request.depth.value}"
    target = "" if request.target.name == "dynamo" else f" --target {request.target.name}"
    where = naming_options(request) + inputs_option(request)
    return (
        f"compilewatch reproduce {name}{device}{where}{nested}",
        f"compilewatch explain {name}{target}{device}{where}{nested}",
        f"{sweep}{device} --fresh",
    )
