"""The scan of real releases, from the oldest that is supported on.

Their wheels are read as archives, downloaded once and kept in the user's cache folder. Only real
releases show whether a file has moved or is written otherwise.
"""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from compilewatch.config import cache_folder
from compilewatch.sources import transformers

RELEASES = ("4.57.6", "5.5.4")
"""The oldest, and the last without `auto_mappings.py`; test_source.py has the installed one."""

pytestmark = pytest.mark.matrix

NOT_FOUND = {"PerceptionEncoder", "VoxtralRealtimeTextModel"}
"""Classes that mappings name and that no file of their release exports."""


def _wheel(version: str) -> Path:
    """The wheel of a release, from the cache or the package index; a test without it fails."""
    folder = cache_folder() / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"transformers-{version}-py3-none-any.whl"
    if not path.exists():
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        command += ["--quiet", "--retries", "1", "--dest", str(folder), f"transformers=={version}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
        if not path.exists():
            pytest.fail(
                f"{path} is not cached and cannot be downloaded, so the scan of transformers "
                f"{version} was not tested: {done.stderr.strip()[-300:]}"
            )
    return path


@pytest.fixture(scope="module", params=RELEASES)
def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> transformers.ScannedLibrary:
    folder = tmp_path_factory.mktemp("release")
    with zipfile.ZipFile(_wheel(request.param)) as wheel:
        names = [n for n in wheel.namelist() if n.startswith("transformers/") and n.endswith(".py")]
        wheel.extractall(folder, names)
    return transformers.read_library(folder / "transformers", folder / "cache")


def test_the_classes_of_a_release_and_what_its_mappings_name_are_found(
    library: transformers.ScannedLibrary,
) -> None:
    classes = {found.name: found for found in library.classes}
    assert library.version in RELEASES
    assert len(transformers.concrete_classes(library)) > 1200
    assert not {name for name in classes if name.startswith(("TF", "Flax"))}
    phi = classes["Phi3ForCausalLM"]
    assert (phi.model_type, phi.config_class) == ("phi3", "Phi3Config")
    assert "input_ids" in phi.parameters
    assert ("Gemma4ForCausalLM" in classes) == (library.version == "5.5.4")
    assert library.model_types["bert"] == "BertConfig"
    assert len(library.model_types) > 400
    assert transformers.primary_classes(library)["phi3"] == "Phi3ForCausalLM"
    if library.version > "5":  # before, retired models are in a folder that is not scanned
        mapped = (types.values() for types in library.mappings.values())
        named = {name for values in mapped for names in values for name in names}
        assert named - classes.keys() <= NOT_FOUND
