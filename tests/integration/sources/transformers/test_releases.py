"""The scan of the oldest release that is supported; test_source.py has the installed one.

Its wheel is read as an archive, downloaded once and kept in the user's cache folder. Only a real
release shows whether a file has moved or is written otherwise.
"""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from compilewatch.config import cache_folder
from compilewatch.sources import transformers

OLDEST = "4.57.6"


def _wheel(version: str) -> Path:
    """The wheel of a release, from the cache or the package index; a test without it fails."""
    folder = cache_folder() / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"transformers-{version}-py3-none-any.whl"
    if not path.exists():
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        command += ["--quiet", "--retries", "1", "--dest", str(folder), f"transformers=={version}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
        reason = f"{path} is not cached and cannot be downloaded: {done.stderr.strip()[-300:]}"
        assert path.exists(), reason
    return path


@pytest.mark.matrix
def test_the_classes_of_a_release_are_found(tmp_path: Path) -> None:
    with zipfile.ZipFile(_wheel(OLDEST)) as wheel:
        names = [n for n in wheel.namelist() if n.startswith("transformers/") and n.endswith(".py")]
        wheel.extractall(tmp_path, names)
    library = transformers.read_library(tmp_path / "transformers", tmp_path / "cache")
    classes = {found.name: found for found in library.classes}
    assert library.version == OLDEST
    assert len(transformers.concrete_classes(library)) > 1200
    assert not {name for name in classes if name.startswith(("TF", "Flax"))}
    phi = classes["Phi3ForCausalLM"]
    assert (phi.model_type, phi.config_class) == ("phi3", "Phi3Config")
    assert "input_ids" in phi.parameters
    assert library.model_types["bert"] == "BertConfig"
    assert len(library.model_types) > 400
    assert transformers.primary_classes(library)["phi3"] == "Phi3ForCausalLM"
