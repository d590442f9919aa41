"""`compilewatch.worker.process.describe NAME` prints this interpreter as an `Environment`.

torch is not imported: `torch/version.py`, which its build writes, has the version and the commit,
and everything else is package metadata. Therefore a run that reuses every result does not need to
import torch.
"""

import hashlib
import importlib.util
import platform
import runpy
import sys
from importlib import metadata
from pathlib import Path

import msgspec
from packaging.requirements import Requirement

from compilewatch.contract.libraries import LIBRARIES, PACKAGE_ENVIRONMENTS
from compilewatch.contract.targets import TARGETS
from compilewatch.errors import InterpreterError
from compilewatch.neuron import installed, neuronx_cc
from compilewatch.neuron.neuronx_cc import core_count
from compilewatch.records import HARNESS_VERSION, Environment

_DETECTED = {
    # torch and transformers detect these packages and change their behaviour.
    "accelerate",
    "einops",
    "flash-attn",
    "kernels",
    "libneuronxla",
    "librosa",
    "mamba-ssm",
    "neuronx-cc",
    "nki",
    "numpy",
    "pillow",
    "scipy",
    "sentencepiece",
    "sympy",
    "tokenizers",
    "torch",
    "torchaudio",
    "triton",
}

PACKAGES = tuple(
    sorted(
        {
            *_DETECTED,
            *(row.distribution for row in LIBRARIES.values()),
            *(Requirement(route.package).name for row in TARGETS.values() for route in row.routes),
            *(package for packages in PACKAGE_ENVIRONMENTS.values() for package in packages),
        }
    )
)
"""Distributions whose presence or version can change a result."""


def describe(name: str) -> Environment:
    """This interpreter as an environment. Raises InterpreterError if torch is not installed.

    Its device is the CPU; with the Neuron SDK, the NeuronCores of the machine are part of it.
    """
    device = "cpu"
    version, git, cuda = _torch_version()
    packages = installed_packages()
    if "torch-neuronx" in packages and (cores := core_count()):
        device = f"{device}, {cores} NeuronCores"  # compiled programs also run there
    python = platform.python_version()
    facts = [python, version, git, packages, HARNESS_VERSION, device]
    return Environment(
        name=name,
        python_executable=sys.executable,
        python=python,
        torch=version,
        torch_git=git,
        transformers=packages.get("transformers"),
        device=device,
        packages=packages,
        cuda=cuda,
        placeholders=installed.placeholders(),
        digest=hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()[:16],
    )


def installed_packages() -> dict[str, str]:
    """The versions of installed `PACKAGES`, and the path of a neuronx-cc outside this interpreter.

    A stored result "there is no compiler" must not be reused after the compiler was installed.
    PyPI's placeholders of AWS's packages are left out.
    """
    versions = {}
    for package in sorted({*PACKAGES} - installed.placeholders().keys()):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    path = neuronx_cc.find()
    if path is not None:
        versions.setdefault("neuronx-cc", path)
    return versions


def _torch_version() -> tuple[str, str, str | None]:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise InterpreterError(
            f"{sys.executable} has no torch: install it there, or run make setup"
        )
    try:
        values = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
        git = str(values.get("git_version") or "unknown")
        return str(values["__version__"]), git, values.get("cuda")
    except (OSError, KeyError):
        raise InterpreterError(
            f"{spec.origin} is found first as torch and is not PyTorch: rename it, or remove its "
            "folder from PYTHONPATH"
        ) from None


def main(arguments: list[str]) -> int:
    try:
        environment = describe(arguments[0] if arguments else "default")
    except InterpreterError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    sys.stdout.write(msgspec.json.encode(environment).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
