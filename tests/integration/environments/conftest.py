"""An index of three small wheels, so that real pip makes a real environment in seconds, offline."""

import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

TORCH = {
    "torch/__init__.py": "",
    "torch/version.py": "__version__ = '2.9.0+stub'\ngit_version = 'abc'\n",
    "torch-2.9.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n",
    "torch-2.9.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "torch-2.9.0.dist-info/RECORD": "",
}


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stub of torch, and what a worker needs besides as it is installed here."""
    folder = tmp_path_factory.mktemp("wheels")
    with zipfile.ZipFile(folder / "torch-2.9.0-py3-none-any.whl", "w") as wheel:
        for name, text in TORCH.items():
            wheel.writestr(name, text)
    for name in ("msgspec", "packaging"):
        installed = metadata.distribution(name)
        described = (installed.read_text("WHEEL") or "").splitlines()
        tag = next(line.removeprefix("Tag: ") for line in described if line.startswith("Tag: "))
        path = folder / f"{name}-{installed.version}-{tag}.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            for file in installed.files or ():
                inside = file.parts[0].startswith(name)
                if inside and "__pycache__" not in file.parts and file.name != "RECORD":
                    wheel.write(Path(str(file.locate())), str(file))
            wheel.writestr(f"{name}-{installed.version}.dist-info/RECORD", "")
    return folder


@pytest.fixture(scope="module")
def index(wheels: Path) -> Iterator[Path]:
    """pip sees these wheels and nothing else."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "TORCH_INDEX"):
            patch.delenv(variable, raising=False)
        patch.setenv("PIP_CONFIG_FILE", "/dev/null")
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(wheels))
        yield wheels
