"""The complete file of a reproducer, and what it does in a process of its own."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
from enum import StrEnum
from pathlib import Path

import torch

from compilewatch.extras.fixes.minimal.messages import FRESH_SECONDS, FreshRun
from compilewatch.extras.fixes.worker.minimal.reasons import Likeness, handling, likeness
from compilewatch.records import GraphBreak
from compilewatch.worker.targets.dynamo.graph_breaks import portable_text
from compilewatch.worker.targets.dynamo.reasons import classify

_CALL = re.compile(r"torch\.compile\((\w+), backend='eager'\)")
_LOGGED = re.compile(r"^.*?Graph Break Reason: ", re.M)
_END_OF_LOGGED = re.compile(r"\n\n?User code traceback:\n|\n\nStack variable source attribution:\n")
_RAISED = re.compile(
    r"^torch\._dynamo\.exc\.\w+: (.*?)(?=\n\nfrom user code:|\n\nSet TORCHDYNAMO_VERBOSE"
    r"|\nTraceback \(most recent|\nTorchDynamo attempted|\Z)",
    re.M | re.S,
)
_LOG_PREFIX = re.compile(r"^[VIWEC]\d{4} [^\]]*\](?: \[[\d/]+\])?(?: \[__\w+\])? ?", re.M)
_OF_THE_WORKER = ("TORCH_LOGS", "PYTHONPATH")
"""Variables that a user's shell does not have."""


class Showing(StrEnum):
    """How a file lets torch show the graph break."""

    RAISED = "fullgraph=True raises it"
    LOGGED = "torch._logging.set_logs(graph_breaks=True)"
    GIVEN_UP = "torch._logging.set_logs(graph_breaks=True, dynamo=20)"
    """Frames that fail before Dynamo traces them are only in the messages of level INFO (20)."""


def complete(body: str, broken: GraphBreak, model: str, *, showing: Showing) -> str:
    """The file that users get: a comment about its origin, and the reduced code."""
    place = f"{broken.file}:{broken.line}, in {broken.function}"
    first_line = (broken.gb_type or broken.reason).splitlines()[0]
    lines = [
        f"# A graph break of torch.compile, reduced from {model}",
        f"# ({place}) by compilewatch.",
        f"# Expected: {broken.code}, {first_line[:80]}",
        f"# Versions: torch {torch.__version__}, Python {sys.version.split()[0]}",
    ]
    tree = ast.parse(body)
    if showing is not Showing.RAISED:
        imports = [isinstance(statement, ast.Import | ast.ImportFrom) for statement in tree.body]
        tree.body[imports.index(False) : imports.index(False)] = ast.parse(showing.value).body
    text = "\n".join(_spaced(tree))
    if showing is Showing.RAISED:
        text = _CALL.sub(r"torch.compile(\1, backend='eager', fullgraph=True)", text)
    return "\n".join([*lines, text.replace("'", '"') if "'" in text and '"' not in text else text])


def _spaced(tree: ast.Module) -> list[str]:
    """The statements with empty lines around definitions."""
    lines: list[str] = []
    before: ast.stmt | None = None
    for node in tree.body:
        defines = isinstance(node, ast.FunctionDef | ast.ClassDef)
        imports = isinstance(before, ast.Import | ast.ImportFrom)
        after_import = imports and not isinstance(node, ast.Import | ast.ImportFrom)
        if before is not None and (
            defines or isinstance(before, ast.FunctionDef | ast.ClassDef) or after_import
        ):
            lines += ["", ""] if defines or not after_import else [""]
        lines += ast.unparse(node).splitlines()
        before = node
    return [*lines, ""]


def count_lines(source: str) -> int:
    """Lines without comments and empty ones."""
    kept = (line.strip() for line in source.splitlines())
    return sum(bool(line) and not line.startswith("#") for line in kept)


def run_fresh(source: str, reason: str) -> FreshRun:
    """Run a file in a new process and read the graph breaks that torch prints."""
    with tempfile.TemporaryDirectory(prefix="compilewatch-") as folder:
        path = Path(folder) / "reproducer.py"
        path.write_text(source)
        try:
            ended = subprocess.run(
                [sys.executable, str(path)],
                capture_output=True,
                check=False,
                text=True,
                cwd=folder,
                timeout=FRESH_SECONDS,
                env={k: v for k, v in os.environ.items() if k not in _OF_THE_WORKER},
            )
        except subprocess.TimeoutExpired:
            return FreshRun(code=None, reason="the file did not end in time")
    printed = reasons_in(ended.stderr)
    if not printed:
        last = (ended.stderr.strip().splitlines() or ["torch printed no graph break"])[-1]
        return FreshRun(code=None, reason=last)
    best = max(printed, key=lambda each: likeness(reason, each))
    return FreshRun(
        code=classify(best).code,
        reason=portable_text(best),
        same_reason=likeness(reason, best) >= Likeness.REASON,
    )


def reasons_in(printed: str) -> list[str]:
    """The reasons in what torch prints: those that it logs, and those of exceptions."""
    text = _LOG_PREFIX.sub("", printed)
    logged = [_END_OF_LOGGED.split(piece)[0].strip() for piece in _LOGGED.split(text)[1:]]
    return logged + [found[1].strip() for found in _RAISED.finditer(text)]


def may_raise(reason: str) -> bool:
    """Whether `fullgraph=True` can show a graph break: not where Dynamo's handling is the point."""
    return handling(reason) == "cut"
