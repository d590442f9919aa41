"""The profilers of the Neuron SDK as programs: neuron-profile, and its successor neuron-explorer.

neuron-profile ended with SDK 2.30; neuron-explorer keeps its commands: `capture -n NEFF -s NTFF`
and `view -n NEFF -s NTFF --output-format summary-json`, or `view -d DIR` for a session.
"""

import json
import re
from pathlib import Path
from typing import Any

from compilewatch.contract.processes import program
from compilewatch.errors import CompilerError
from compilewatch.neuron.neuronx_cc import TOOLS, output_of

PROGRAMS = ("neuron-explorer", "neuron-profile")
"""The newer program first."""

FORMATS = ("summary-text", "summary-json", "json", "parquet", "perfetto", "db")

NEFF_SUFFIX, NTFF_SUFFIX = ".neff", ".ntff"

SESSION_FILES = ("ntrace.pb", "trace_info.pb", "cpu_util.pb", "host_mem.pb")
"""Files of a captured session, besides NEFF and NTFF files."""

_NUMBER = re.compile(r"^-?\d+(\.\d+)?([eE][-+]?\d+)?$")
_LINE = re.compile(r"^\s*([A-Za-z][\w ./()-]*?)\s*(?:[:=|]|\s{2,})\s*(\S.*?)\s*\|?\s*$")


def find() -> Path:
    """Return the newest installed profiler: beside this Python, on PATH or in /opt/aws/neuron/bin.

    Raises CompilerError if there is none.
    """
    for name in PROGRAMS:
        path = program(name, str(TOOLS))
        if path is not None:
            return Path(path)
    raise CompilerError(
        f"neither {' nor '.join(PROGRAMS)} is on PATH or in {TOOLS}: install aws-neuronx-tools on "
        "an instance with Neuron devices"
    )


def capture(tool: Path, neff: Path, ntff: Path, *, timeout_seconds: float) -> None:
    """Run a NEFF on a NeuronCore and record it; its inputs are zeros.

    Raises CompilerError if the program fails or records nothing.
    """
    run(tool, ["capture", "-n", str(neff), "-s", str(ntff)], timeout_seconds=timeout_seconds)
    if not ntff.exists() or ntff.stat().st_size == 0:
        raise CompilerError(f"{tool.name} recorded nothing in {ntff}: is another process using it?")


def view_command(
    tool: Path, place: Path, *, output_format: str, output_file: Path | None
) -> list[str]:
    """Return the arguments that show a NEFF with its NTFF, or a session's folder.

    Raises CompilerError for a place that is neither.
    """
    if place.is_dir():
        folder = "-d" if tool.name == "neuron-explorer" else "--session-dir"
        named = ["view", folder, str(place)]
    elif place.suffix == NTFF_SUFFIX:
        named = ["view", "-n", str(_neff_of(place)), "-s", str(place)]
    else:
        raise CompilerError(f"{place}: name a folder of a session or a *{NTFF_SUFFIX} file")
    output = ["--output-file", str(output_file)] if output_file is not None else []
    return [*named, "--output-format", output_format, *output]


def _neff_of(ntff: Path) -> Path:
    """Return the NEFF beside an NTFF: of the same name, or the only one. Raises CompilerError."""
    same = ntff.with_suffix(NEFF_SUFFIX)
    if same.exists():
        return same
    beside = sorted(ntff.parent.glob(f"*{NEFF_SUFFIX}"))
    if len(beside) == 1:
        return beside[0]
    raise CompilerError(f"{ntff}: expected {same.name} beside it, found {len(beside)} NEFF files")


def run(tool: Path, arguments: list[str], *, timeout_seconds: float) -> str:
    """Run the program and return what it printed. Raises CompilerError."""
    return output_of([str(tool), *arguments], timeout_seconds)[0]


def empty_files(folder: Path) -> list[Path]:
    """Return the NTFF files of a session that captured nothing.

    Raises CompilerError for a folder without a session.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    ntffs = [path for path in files if path.suffix == NTFF_SUFFIX]
    if not ntffs and not any(path.name in SESSION_FILES for path in files):
        raise CompilerError(f"{folder} contains neither *{NTFF_SUFFIX} nor {SESSION_FILES[0]}")
    return [path for path in ntffs if path.stat().st_size == 0]


def parse_summary(text: str) -> dict[str, float | str]:
    """Parse the output of `--output-format summary-json` or `summary-text`.

    JSON may hold the figures directly, or below the name of each profile; text has one `name value`
    in each line. Raises CompilerError if there is no figure.
    """
    figures: dict[str, float | str] = {}
    try:
        _flatten(json.loads(text), figures)
    except ValueError:
        for line in text.splitlines():
            matched = _LINE.match(line.strip("|+- \t"))
            if matched is not None:
                name = matched[1].strip().lower().replace(" ", "_")
                value = matched[2]
                figures[name] = float(value) if _NUMBER.match(value) else value
    if not any(isinstance(value, float) for value in figures.values()):
        raise CompilerError("the summary contains no figure: is the profile empty?")
    return figures


def _flatten(value: Any, figures: dict[str, float | str]) -> None:
    """Add the figures of nested objects; a later profile does not replace an earlier figure."""
    if isinstance(value, list):
        for inner in value:
            _flatten(inner, figures)
        return
    if not isinstance(value, dict):
        return
    for name, inner in value.items():
        if isinstance(inner, dict | list):
            _flatten(inner, figures)
        elif isinstance(inner, bool):
            continue
        elif isinstance(inner, int | float):
            figures.setdefault(name, float(inner))
        elif isinstance(inner, str):
            figures.setdefault(name, inner)
