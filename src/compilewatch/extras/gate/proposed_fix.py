"""What a failed check says of a fix: a verified one of this model, or a stored one of another."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from compilewatch.api.stored_fixes import stored_fix_for
from compilewatch.config.settings import load_settings
from compilewatch.errors import CompilewatchError
from compilewatch.extras.fixes.records import Fix, FixStatus
from compilewatch.extras.gate.own_code import source_folders
from compilewatch.records import Result
from compilewatch.store import Store

SEARCH_SHARE = 0.6
"""Of the time; the rest is for the verification of what the search has found."""

END_SECONDS = 10.0

_VERIFIED = frozenset({FixStatus.VERIFIED, FixStatus.IMPROVES})


def searched_fix(
    model: str, *, root: Path, mode: str, dynamic: bool, seconds: float
) -> Iterator[str]:
    """Search for a fix of a model by name, in processes of their own; yield what to say of it."""
    command = fix_command(model, root=root, mode=mode, dynamic=dynamic)
    limit = ["--json", "--max-seconds", str(max(1.0, seconds * SEARCH_SHARE))]
    fix = _found([*command, *limit], root, seconds)
    shown = shlex.join(["compilewatch", *command[3:]])
    if isinstance(fix, str):
        yield f"fix:        {fix}: {shown}"
    elif fix.status in _VERIFIED:
        names = " and ".join(change.name for change in fix.changes)
        yield f"fix:        {names} (verified: {fix.detail})"
        yield from (f"    {line}".rstrip() for line in fix.code.splitlines())
        yield f"verify:     {shown} --save verify.py"
    else:
        yield f"fix:        {fix.detail}: {shown}"


def stored_fix(result: Result) -> Iterator[str]:
    """Yield what a stored run has verified for the same graph breaks, and that it is of another."""
    fix = None
    with contextlib.suppress(CompilewatchError):
        fix = stored_fix_for(Store(Path(load_settings({}).output_dir)), result)
    if fix is None:
        yield (
            "fix:        not searched, because an object cannot be built anew in another process: "
            'check the model by its name ("package.module:factory")'
        )
        return
    yield f"fix:        {' and '.join(fix.changes)}"
    where = f"{fix.model} in run {fix.run}"
    yield f"    verified for {where}, for the same graph break, and not for this model"
    yield from (f"    {line}".rstrip() for line in fix.code.splitlines())


def fix_command(model: str, *, root: Path, mode: str, dynamic: bool) -> list[str]:
    """Return the command that searches for a fix of a model by name."""
    command = [sys.executable, "-m", "compilewatch", "fix", model]
    if ":" in model or model.endswith(".py"):
        folders = [folder for folder in source_folders(root) if folder.is_dir()]
        command += [word for folder in folders for word in ("--python-path", str(folder))]
    if mode != "eval":
        command += ["--mode", mode]
    return [*command, *(["--dynamic"] if dynamic else [])]


def _found(command: Sequence[str], root: Path, seconds: float) -> Fix | str:
    """Return the fix, or why there is none."""
    with subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            out, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # it ends its workers then
            try:
                process.communicate(timeout=END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            return f"none is verified within {seconds:g} s"
    try:
        return msgspec.json.decode(out, type=Fix)
    except msgspec.DecodeError:
        lines = errors.strip().splitlines()
        return lines[-1] if lines else f"the search ended with status {process.returncode}"
