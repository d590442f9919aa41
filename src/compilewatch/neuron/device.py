"""The NeuronCores of this machine, listed without using them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

TOOLS = Path("/opt/aws/neuron/bin")
"""Where the tools are installed, often without being on PATH."""

PRODUCT = Path("/sys/devices/virtual/dmi/id/product_name")
"""The instance type on EC2, such as `trn1.2xlarge`."""

TIMEOUT_SECONDS = 60.0


def core_count() -> int:
    """Return how many NeuronCores `neuron-ls -j` lists; 0 without the tool, driver or device."""
    tool = shutil.which("neuron-ls") or shutil.which("neuron-ls", path=str(TOOLS))
    if tool is None:
        return 0
    try:
        done = subprocess.run(
            [tool, "-j"], capture_output=True, check=True, timeout=TIMEOUT_SECONDS
        )
        return sum(int(device["nc_count"]) for device in json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return 0


def instance_family(product: Path = PRODUCT) -> str | None:
    """Return `trn1` for a trn1.2xlarge; None if the machine does not report its type."""
    try:
        return product.read_text().strip().partition(".")[0] or None
    except OSError:
        return None
