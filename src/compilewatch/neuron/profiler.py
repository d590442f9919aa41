"""The profiler of the Neuron SDK as a program, neuron-explorer (Neuron SDK 2.33).

Its commands are `capture -n NEFF -s NTFF` and `view -n NEFF -s NTFF --output-format summary-json`,
or `view -d DIR` for a session.
"""

import json
from pathlib import Path
from typing import Any

from compilewatch.contract.processes import program
from compilewatch.errors import CompilerError
from compilewatch.neuron.neuronx_cc import TOOLS, output_of

PROGRAM = "neuron-explorer"
FORMATS = ("summary-text", "summary-json", "json", "parquet", "perfetto", "db")

NEFF_SUFFIX, NTFF_SUFFIX = ".neff", ".ntff"

SESSION_FILES = ("ntrace.pb", "trace_info.pb", "cpu_util.pb", "host_mem.pb")
"""Files of a captured session, besides NEFF and NTFF files."""

TIMEOUT_SECONDS = 1800.0


def find() -> str:
    """Return the profiler: beside this Python, on PATH or in /opt/aws/neuron/bin.

    Raises CompilerError if there is none.
    """
    tool = program(PROGRAM, str(TOOLS))
    if tool is None:
        raise CompilerError(
            f"{PROGRAM} is neither on PATH nor in {TOOLS}: install aws-neuronx-tools on an "
            "instance with Neuron devices"
        )
    return tool


def capture(neff: Path, ntff: Path) -> None:
    """Run a NEFF on a NeuronCore and record it; its inputs are zeros.

    Raises CompilerError if the program fails or records nothing.
    """
    output_of([find(), "capture", "-n", str(neff), "-s", str(ntff)], TIMEOUT_SECONDS)
    if not ntff.exists() or ntff.stat().st_size == 0:
        raise CompilerError(f"{PROGRAM} recorded nothing in {ntff}: is another process using it?")


def view(place: Path, *, output_format: str, output_file: Path | None = None) -> str:
    """Return what the program prints of an NTFF with its NEFF, or of a session's folder.

    Raises CompilerError for a place that is neither, and if the program fails.
    """
    if place.is_dir():
        named = ["-d", str(place)]
    elif place.is_file() and place.suffix == NTFF_SUFFIX:
        named = ["-n", str(_neff_of(place)), "-s", str(place)]
    else:
        raise CompilerError(f"{place}: name a folder of a session or a *{NTFF_SUFFIX} file")
    output = ["--output-file", str(output_file)] if output_file is not None else []
    command = [find(), "view", *named, "--output-format", output_format, *output]
    return output_of(command, TIMEOUT_SECONDS)[0]


def _neff_of(ntff: Path) -> Path:
    """Return the NEFF beside an NTFF: of the same name, or the only one. Raises CompilerError."""
    same = ntff.with_suffix(NEFF_SUFFIX)
    if same.exists():
        return same
    beside = sorted(ntff.parent.glob(f"*{NEFF_SUFFIX}"))
    if len(beside) == 1:
        return beside[0]
    raise CompilerError(f"{ntff}: expected {same.name} beside it, found {len(beside)} NEFF files")


def empty_files(folder: Path) -> list[Path]:
    """Return the NTFF files of a session that captured nothing.

    Raises CompilerError for a folder without a session.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and is_of_session(path)]
    if not files:
        raise CompilerError(f"{folder} contains neither *{NTFF_SUFFIX} nor {SESSION_FILES[0]}")
    return [path for path in files if path.suffix == NTFF_SUFFIX and path.stat().st_size == 0]


def is_of_session(path: Path) -> bool:
    """Whether a file belongs to a captured session, and not only to a compiled model."""
    return path.suffix == NTFF_SUFFIX or path.name in SESSION_FILES


def parse_summary(text: str) -> dict[str, float | str]:
    """Return the figures of `--output-format summary-json`, also those below names of profiles.

    A later profile does not replace an earlier figure. Raises CompilerError if there is none.
    """
    figures: dict[str, float | str] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, list | dict):
            for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
                add(str(key), inner)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            figures.setdefault(name, float(value))
        elif isinstance(value, str):
            figures.setdefault(name, value)

    try:
        add("", json.loads(text))
    except ValueError as error:
        raise CompilerError(f"{PROGRAM} printed no JSON: {error}") from None
    if not any(isinstance(value, float) for value in figures.values()):
        raise CompilerError("the summary contains no figure: is the profile empty?")
    return figures
