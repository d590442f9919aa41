"""Doubles of the Neuron SDK's programs and module, and how a test puts them in place."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent
BIN = FOLDER / "bin"


def neuron_variables(cache: Path, *, sdk: bool = True) -> Mapping[str, str]:
    """Environment variables under which the doubles are what is installed.

    `cache` stands for the machine's persistent compile cache; without `sdk` there is only the
    compiler.
    """
    found = {
        "PATH": os.pathsep.join((str(BIN), os.environ["PATH"])),
        "NEURON_COMPILE_CACHE_URL": str(cache),
    }
    return found | ({"PYTHONPATH": with_python_path(FOLDER)} if sdk else {})


def with_python_path(folder: Path) -> str:
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def has_ended(pid: int) -> bool:
    """Wait, for as long as the kernel may take, for the end of a process that was killed.

    A zombie that nobody has asked about yet has ended.
    """
    for _ in range(1000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False
