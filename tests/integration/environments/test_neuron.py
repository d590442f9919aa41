"""What is installed for Neuron, what a machine has, and the environments for both."""

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from compilewatch.cli import machine as commands
from compilewatch.config import Settings
from compilewatch.contract.targets import route_of
from compilewatch.environments import (
    Environments,
    EnvironmentState,
    ListedEnvironment,
    creation,
    worker_variables,
)
from compilewatch.environments.creation import create, recipe_of, remove, sizes_of
from compilewatch.errors import InterpreterError
from compilewatch.extras.executor.sandbox.policy import interpreter_paths
from compilewatch.neuron import installed, neuronx_cc
from compilewatch.neuron.installed import Machine
from tests.factories import environment

PLACEHOLDER = (
    'raise ImportError("WRONG PACKAGE. Please install the package from Neuron Repository - '
    'pip.repos.neuron.amazonaws.com")\n'
)
"""The only file of code in PyPI's torch-neuronx 1.0, neuronx-cc 1.0.post1, nki 0.0.1 and others."""

LAPTOP = Machine("", 0, "")
TRN1 = Machine("trn1", 1, "2.31.7.0")
TRN2 = Machine("trn2", 1, "2.31.7.0")
NO_DRIVER = Machine("trn2", 0, "")

NATIVE = {"torch-neuronx": "2.14.3.0.1", "torch": "2.14.0", "neuronx-cc": "2.28.7631.0"}
XLA = {"torch-neuronx": "2.9.0.2.15.32035", "torch": "2.9.0", "neuronx-cc": "2.27.5334.0"}
LOWERING = {"torch-mlir": "20261001", "torch": "2.15.0"}


def install(folder: Path, name: str, version: str, code: str, module: str = "") -> None:
    """A package of one file, as pip leaves it."""
    file = f"{module or name.replace('-', '_')}/__init__.py"
    described = f"{name.replace('-', '_')}-{version}.dist-info"
    (folder / file).parent.mkdir(parents=True)
    (folder / described).mkdir()
    (folder / file).write_text(code)
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (folder / described / "METADATA").write_text(text)
    (folder / described / "RECORD").write_text(f"{file},,\n{described}/METADATA,,\n")


def test_the_placeholders_of_pypi_are_named_and_are_no_product(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "torch-neuronx", "1.0", PLACEHOLDER)
    install(tmp_path, "neuronx-cc", "1.0.post1", PLACEHOLDER, module="neuronx-cc")
    install(tmp_path, "nki", "0.7.0", "version = 1\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    described = Environments(tmp_path / "cache").describe("default")
    assert described.placeholders == {"neuronx-cc": "1.0.post1", "torch-neuronx": "1.0"}
    assert described.packages["nki"] == "0.7.0"
    assert not {"torch-neuronx", "neuronx-cc"} & described.packages.keys()
    assert route_of("neuron", described.packages) is None
    assert installed.problem(described.packages, described.placeholders, TRN2) == (
        "PyPI's placeholders are installed instead of AWS's packages (neuronx-cc 1.0.post1, "
        "torch-neuronx 1.0): pip uninstall neuronx-cc torch-neuronx, then compilewatch env create "
        "neuron"
    )


@pytest.mark.parametrize(
    ("packages", "here", "said"),
    [
        (XLA, TRN2, "torch-neuronx 2.9.0.2.15.32035 is for Trn1 and Inf2, and this is trn2: "
         "compilewatch env create neuron"),
        (NATIVE, TRN1, "torch-neuronx 2.14.3.0.1 is TorchNeuron, for Trn2 and Trn3, and this is "
         "trn1: compilewatch env create neuron-xla"),
        (NATIVE | {"torch": "2.15.0"}, LAPTOP, "torch-neuronx 2.14.3.0.1 needs torch 2.14, and "
         "2.15.0 is installed: compilewatch env create neuron"),
        (XLA | {"torch": "2.15.0"}, TRN1, "torch-neuronx 2.9.0.2.15.32035 needs torch 2.9, and "
         "2.15.0 is installed: compilewatch env create neuron-xla"),
        (NATIVE | {"torch": "2.14.0+cpu"}, TRN2, ""),
        (NATIVE, LAPTOP, ""),
        (XLA, TRN1, ""),
        (LOWERING, TRN2, ""),
    ],
)  # fmt: skip
def test_a_product_that_cannot_work_is_one_line_that_says_what_to_do(
    packages: dict[str, str], here: Machine, said: str
) -> None:
    assert installed.problem(packages, {}, here) == said


@pytest.mark.parametrize(
    ("packages", "here", "fact", "advice"),
    [
        ({}, LAPTOP, "nothing: no environment for it; no Neuron instance, 0 devices, driver none",
         "compilewatch env create lowering gives a forecast, on any machine"),
        ({"torch-neuronx": "2.14.3.0.1"}, LAPTOP, "nothing: no environment for it; no Neuron inst",
         "compilewatch env create lowering gives a forecast, on any machine"),
        (LOWERING, LAPTOP, "forecast: environment lowering has torch-mlir 20261001; no Neuron ins",
         "compilewatch env create neuron gives AWS's compiler, on the systems that it is for"),
        (LOWERING, TRN1, "forecast: environment lowering has torch-mlir 20261001; trn1, 1 devices",
         "compilewatch env create neuron-xla gives AWS's compiler, on the systems that it is for"),
        (NATIVE, LAPTOP, "compile-only: environment lowering has torch-neuronx 2.14.3.0.1, neuronx",
         "a verdict needs a Trn2 or Trn3: docs/trainium.md"),
        (NATIVE, NO_DRIVER, "compile-only: environment lowering has torch-neuronx 2.14.3.0.1, neur",
         "no /dev/neuron0: install aws-neuronx-dkms, or start the container with --device"),
        (NATIVE, TRN2, "verdict: environment lowering has torch-neuronx 2.14.3.0.1, neuronx-c", ""),
        (XLA, TRN1, "verdict: environment lowering has torch-neuronx 2.9.0.2.15.32035, neuron", ""),
    ],
)  # fmt: skip
def test_the_doctor_says_what_can_be_had_on_neuron_and_how_to_get_more(
    packages: dict[str, str], here: Machine, fact: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [
        ListedEnvironment(name=name, state=EnvironmentState.READY, environment=made)
        for name, made in (
            ("default", environment(packages={"torch": "2.15.0"})),
            ("lowering", environment(name="lowering", packages=packages)),
            ("stubs", environment(name="stubs", packages={}, placeholders={"nki": "0.0.1"})),
        )
    ]
    monkeypatch.setattr("compilewatch.environments.listing", lambda *_, **__: listed)
    monkeypatch.setattr(installed, "machine", lambda: here)
    *_, wrong, best = commands._environments(Settings(), fresh=False)
    assert (wrong.name, wrong.state) == ("neuron in stubs", "note")
    assert "PyPI's placeholders are installed instead of AWS's packages (nki 0.0.1)" in wrong.fact
    assert best.fact.startswith(fact)
    assert (best.state, best.advice) == ("note" if advice else "ok", advice)


def test_a_machine_is_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "DEVICES", tmp_path)
    monkeypatch.setattr(installed, "DRIVER", tmp_path / "version")
    monkeypatch.setattr(neuronx_cc, "PRODUCT", tmp_path / "product_name")
    (tmp_path / "product_name").write_text("m7i.large\n")
    assert installed.machine() == LAPTOP
    for name in ("neuron0", "neuron1", "neuron_other"):
        (tmp_path / name).touch()
    (tmp_path / "version").write_text("2.31.7.0\n")
    (tmp_path / "product_name").write_text("trn2.3xlarge\n")
    assert str(installed.machine()) == "trn2, 2 devices, driver 2.31.7.0"


UBUNTU = {"NAME": "Ubuntu", "VERSION_ID": "26.04"}


@pytest.mark.parametrize(
    ("name", "release", "python", "said"),
    [
        ("neuron", UBUNTU | {"VERSION_ID": "24.04"}, "3.13.2", r"needs Ubuntu 26\.04 x86_64 or "
         r"AWS's machine image \(.*\); this is Ubuntu 24\.04 x86_64: compilewatch env cre"),
        ("neuron", {"NAME": "Debian GNU/Linux"}, "3.13.2", "this is Debian GNU/Linux  x86_64"),
        ("neuron", UBUNTU, "3.11.2", r"needs Python >=3\.12,<3\.15, and .* is 3\.11\.2: name"),
        ("neuron-xla", UBUNTU, "3.14.0", r"needs Python >=3\.11,<3\.14"),
        ("lowering", UBUNTU, "3.10.9", r"needs Python >=3\.11, and"),
    ],
)  # fmt: skip
def test_where_there_are_no_wheels_the_reason_is_one_line(
    name: str,
    release: dict[str, str],
    python: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(creation, "IMAGES", tmp_path)
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "python_version", lambda: python)
    with pytest.raises(InterpreterError, match=said) as caught:
        create(Environments(tmp_path / "cache"), name, recipe_of(name))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "cache").exists()


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The packages of a machine image of AWS, in `/opt` of its own: two releases, with pip."""
    monkeypatch.setattr(creation, "IMAGES", tmp_path / "opt")
    for release in ("2_9_1", "2_14_0"):
        venv = tmp_path / "opt" / f"aws_neuronx_venv_torch_neuronx_{release}"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    packages = next(venv.glob("lib/python*/site-packages"))
    pip = Path(str(metadata.distribution("pip").locate_file("")))
    for folder in (*pip.glob("pip"), *pip.glob("pip-*")):
        (packages / folder.name).symlink_to(folder)
    install(packages, "torch", "2.14.0", "")
    version = "__version__ = '2.14.0+cpu'\ngit_version = 'abc'\n"
    (packages / "torch" / "version.py").write_text(version)
    install(packages, "torch-neuronx", "2.14.3.0.1", "")
    install(packages, "neuronx-cc", "2.28.7631.0", "", module="neuronxcc")
    (venv / "bin" / "neuronx-cc").write_text("#!/bin/sh\n")
    (venv / "bin" / "neuronx-cc").chmod(0o755)
    return packages


def test_the_environment_of_a_machine_image_is_used_where_it_is_and_stays_as_it_is(
    image: Path, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only real pip and Python show that packages are found beside those of another folder."""
    monkeypatch.setattr(creation, "REQUIREMENTS", tmp_path)
    lock = "torch==2.14.0\ntorch-neuronx==2.14.*\nnki>0.0.1\nmsgspec\npackaging\n"
    (tmp_path / "neuron.txt").write_text(f"--extra-index-url https://example.com\n{lock}")
    before = sorted(path.name for path in image.iterdir())
    environments = Environments(tmp_path / "cache")
    environment, anew = create(environments, "neuron", recipe_of("neuron"))
    assert anew
    assert environment.torch == "2.14.0+cpu"
    assert environment.packages["torch-neuronx"] == "2.14.3.0.1"
    assert environments.describe("neuron") == environment
    assert not create(environments, "neuron", recipe_of("neuron"))[1]
    chosen = environments.interpreter("neuron")
    program = "import msgspec, torch; print(msgspec.__file__, torch.__file__)"
    found = subprocess.run(
        [chosen.path, "-c", program],
        env=worker_variables(chosen),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert [Path(file).is_relative_to(image) for file in found] == [False, True]
    assert str(image.parents[2]) in interpreter_paths(chosen.path)  # which a sandbox may read
    assert os.access(Path(chosen.path).with_name("neuronx-cc"), os.X_OK)
    # What is installed there later is seen, and its Transformers is read.
    (image / "transformers").mkdir()
    assert environments.transformers_folder("neuron") is not None
    install(image, "torch-mlir", "20261001", "")
    assert environments.describe("neuron").packages["torch-mlir"] == "20261001"
    assert sizes_of(environments, "neuron")[0] < 20 * 2**20
    remove(environments, "neuron")
    assert sorted({*before, "torch_mlir", "torch_mlir-20261001.dist-info", "transformers"}) == (
        sorted(path.name for path in image.iterdir())
    )
