"""The NeuronCores of this machine, asked without touching them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

TOOLS = Path("/opt/aws/neuron/bin")
"""Where the tools are installed, often without being on PATH."""

PRODUCT = Path("/sys/devices/virtual/dmi/id/product_name")
"""On EC2 the instance type, such as `trn1.2xlarge`."""

TIMEOUT_SECONDS = 60.0


def core_count() -> int:
    """NeuronCores that `neuron-ls -j` lists; 0 where there is no tool, no driver or no device."""
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
    """`trn1` on a trn1.2xlarge; None where the machine does not say what it is."""
    try:
        return product.read_text().strip().partition(".")[0] or None
    except OSError:
        return None
