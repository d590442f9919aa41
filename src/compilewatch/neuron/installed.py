"""What an environment and this machine have of Neuron, what that gives, and what is wrong with it.

One distribution is two products: torch-neuronx below 2.13 goes through XLA and is for Trn1 and
Inf2; from 2.13 on it is TorchNeuron, for Trn2 and Trn3. Each release is for the torch of its first
two numbers (Neuron SDK 2.33, release notes of torchneuron). PyPI has placeholders of AWS's names,
which install well and raise when they are imported.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.version import Version

from compilewatch.contract.targets import route_of
from compilewatch.neuron import neuronx_cc

NAMES = ("libneuronxla", "neuronx-cc", "neuronx-distributed", "nki", "torch-neuronx")

DEVICES, DRIVER = Path("/dev"), Path("/sys/module/neuron/version")

ABILITIES = ("verdict", "compile-only", "forecast", "nothing")
"""What can be had on Neuron, the best first."""

CREATE = "compilewatch env create"


@dataclass(frozen=True)
class Machine:
    """Its instance family (`trn2`, "" if it is none), device nodes, and the driver's version."""

    family: str
    devices: int
    driver: str

    @property
    def environment(self) -> str:
        """The environment with the product for it."""
        return "neuron-xla" if self.family.startswith(("trn1", "inf")) else "neuron"

    def __str__(self) -> str:
        family, driver = self.family or "no Neuron instance", self.driver or "none"
        return f"{family}, {self.devices} devices, driver {driver}"


def machine() -> Machine:
    """Return what this machine has. compilewatch has not run on one with a device yet."""
    family, driver = (
        path.read_text().strip() if path.is_file() else "" for path in (neuronx_cc.PRODUCT, DRIVER)
    )
    is_neuron = family.startswith(("trn", "inf"))
    nodes = list(DEVICES.glob("neuron[0-9]*"))
    return Machine(family.partition(".")[0] if is_neuron else "", len(nodes), driver)


def placeholders() -> dict[str, str]:
    """Return the names and versions of PyPI's placeholders in this interpreter."""
    versions = {}
    for name in NAMES:
        for distribution in metadata.distributions(name=name):
            files = [file.locate() for file in distribution.files or () if file.suffix == ".py"]
            if len(files) == 1 and "WRONG PACKAGE" in Path(str(files[0])).read_text("utf-8"):
                versions[name] = distribution.version
    return versions


def ability(packages: Mapping[str, str], here: Machine) -> str:
    """Return what an environment with these packages (name -> version) gives on a machine."""
    route = route_of("neuron", packages)
    if route is None:
        return "nothing"
    if route.forecast:
        return "forecast"
    if here.devices and "torch-neuronx" in packages:
        return "verdict"
    return "compile-only" if "neuronx-cc" in packages else "nothing"


def better(best: str, here: Machine) -> str:
    """Return what gives the next better ability; "" after the best."""
    if best == "nothing":
        return f"{CREATE} lowering gives a forecast, on any machine"
    if here.family and not here.devices:
        return "no /dev/neuron0: install aws-neuronx-dkms, or start the container with --device"
    if best == "forecast" or (best == "compile-only" and here.devices):
        return f"{CREATE} {here.environment} gives AWS's compiler, on the systems that it is for"
    return "" if best == "verdict" else "a verdict needs a Trn2 or Trn3: docs/trainium.md"


def problem(packages: Mapping[str, str], placeholders: Mapping[str, str], here: Machine) -> str:
    """Return why an environment's Neuron product cannot work here, and what to do, in one line.

    "" if nothing is known to be wrong, also where there is no such product.
    """
    if placeholders:
        names = ", ".join(f"{name} {version}" for name, version in placeholders.items())
        return (
            f"PyPI's placeholders are installed instead of AWS's packages ({names}): pip uninstall "
            f"{' '.join(placeholders)}, then {CREATE} {here.environment}"
        )
    version = packages.get("torch-neuronx")
    if version is None:
        return ""
    release = ".".join(version.split(".")[:2])
    own = "neuron-xla" if Version(release) < Version("2.13") else "neuron"
    torch = packages.get("torch", release)
    if here.family and own != here.environment:
        product = "TorchNeuron, for Trn2 and Trn3" if own == "neuron" else "for Trn1 and Inf2"
        wrong = f"is {product}, and this is {here.family}"
    elif torch.split(".")[:2] != release.split("."):
        wrong = f"needs torch {release}, and {torch} is installed"
    else:
        return ""
    return f"torch-neuronx {version} {wrong}: {CREATE} {here.environment if here.family else own}"
