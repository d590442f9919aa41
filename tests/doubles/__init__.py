"""Doubles of the Neuron SDK's programs and module, and how a test puts them in place."""

import os
import time
from pathlib import Path

FOLDER = Path(__file__).parent
BIN = FOLDER / "bin"
NATIVE = FOLDER / "native"
"""Where torch_neuronx is TorchNeuron; in FOLDER, it is the one that goes through XLA."""
"""A folder for the front of PATH."""


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
