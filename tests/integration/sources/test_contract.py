"""What every source in the table keeps to."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from compilewatch.contract.libraries import LIBRARIES
from compilewatch.errors import SourceError
from compilewatch.records import ModelSpec
from compilewatch.sources import ALL, SOURCES, make_source
from compilewatch.sources.hub.pulled import PulledList, PulledModel, PulledQuery, write_pulled
from tests.paper_summaries import store_code

EXAMPLE = Path(__file__).parents[3] / "inputs"

OF_PACKAGES = {row.source for name, row in LIBRARIES.items() if name != "transformers"}
"""Sources that need a package; tests/unit/sources/test_libraries.py has theirs."""

HERE = sorted(SOURCES.keys() - OF_PACKAGES)


@pytest.fixture(autouse=True)
def places(tmp_path: Path, scans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs with a pulled list and the example manifest, so that every source has models."""
    inputs = tmp_path / "inputs"
    monkeypatch.setenv("COMPILEWATCH_INPUTS", str(inputs))
    monkeypatch.setenv("COMPILEWATCH_CACHE", str(scans))
    monkeypatch.setenv("COMPILEWATCH_OUTPUT_DIR", str(tmp_path / "outputs"))
    models = [
        PulledModel(repository=f"org/{name}", problem="p", downloads=downloads)
        for name, downloads in (("few", 1), ("many", 9), ("unknown", None))
    ]
    pulled = PulledList(endpoint="e", pulled_at="t", query=PulledQuery(top=3), model=models)
    write_pulled(inputs / "pulled" / "models.toml", pulled)
    for name in ("models.toml", "examples"):
        (inputs / name).symlink_to(EXAMPLE / name)
    monkeypatch.chdir(tmp_path)
    store_code(tmp_path / "outputs")


# All libraries at once ask a worker of each environment, which takes many seconds.
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.matrix] if n == ALL else []) for n in HERE]
)
def test_models(name: str) -> None:
    source = make_source(name)
    specs = source.models()
    assert source.name == name
    assert len({spec.name for spec in specs}) == len(specs) > 0
    for spec in specs:
        assert spec.source == name or (name == ALL and spec.source in SOURCES)
        assert spec.name == spec.name.strip() != ""
        assert spec.family
        assert spec.task
        assert spec.skip_reason is None or "\n" not in spec.skip_reason
        assert msgspec.json.decode(msgspec.json.encode(spec), type=ModelSpec) == spec
    downloads = [spec.downloads or 0 for spec in specs]
    assert downloads == sorted(downloads, reverse=True)
    assert source.models() == specs


def test_a_missing_package_is_one_line_with_the_command_that_creates_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPILEWATCH_CACHE", str(tmp_path / "no environments"))
    for name in OF_PACKAGES:
        command = "is in no environment here: compilewatch env create"
        with pytest.raises(SourceError, match=command):
            make_source(name).models()


def test_nothing_heavy_is_imported() -> None:
    """One process for all; no worker lists a library."""
    script = (
        "import sys\n"
        "from compilewatch.sources import libraries, make_source\n"
        "libraries.KNOWN_ONLY.set(True)\n"
        f"assert all(make_source(name).models() for name in {HERE!r})\n"
        "print(sorted({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
