"""What the reviewed data say of the versions that they were checked with."""

from pathlib import Path

import pytest

from compilewatch.sources.transformers import ModelClass, ScannedLibrary
from scripts.check_inputs import findings, stated, write

DATA = Path("src/compilewatch/data")

LIBRARY = ScannedLibrary(
    version="5.2.0",
    classes=(ModelClass(name="BertModel", model_type="bert"),),
    mappings={"CONFIG_MAPPING_NAMES": {"bert": ("BertConfig",)}},
)

OVERRIDE = """checked_with = "torch 1.0, transformers 4.0"
[[override]]
classes = ["{name}"]
reason = "a test"
date = 2026-11-23
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "default.txt").write_text("torch==2.3.1\ntransformers==5.2.0\n")
    (tmp_path / DATA / "overrides").mkdir(parents=True)
    (tmp_path / DATA / "popularity.csv").write_text(
        "# checked with: nothing\n"
        "model_type,downloads_30d,models,top_model,top_model_downloads_30d\nbert,5,1,org/bert,5\n"
    )
    _override(tmp_path, OVERRIDE.format(name="BertModel"))
    return tmp_path


def _override(root: Path, text: str) -> None:
    (root / DATA / "overrides" / "config.toml").write_text(text)


LACKS = "src/compilewatch/data/{}: transformers 5.2.0 has no {}"
OLDER = 'transformers = ">=4.57,<5"\n'


def test_names_that_the_pinned_release_lacks_are_findings(root: Path) -> None:
    assert list(findings(root, LIBRARY)) == []
    _override(root, OVERRIDE.format(name="BartModel"))
    assert list(findings(root, LIBRARY)) == [LACKS.format("overrides/config.toml", "BartModel")]
    _override(root, OVERRIDE.format(name="BartModel") + OLDER)
    with (root / DATA / "popularity.csv").open("a") as file:
        file.write("bart,4,1,org/bart,4\n")
    assert list(findings(root, LIBRARY)) == [LACKS.format("popularity.csv", "bart")]
    (root / "requirements" / "default.txt").write_text("torch==2.3.1\ntransformers==5.3.0\n")
    assert next(findings(root, LIBRARY)) == "transformers 5.2.0 is installed, 5.3.0 is pinned"


def test_the_versions_are_written_and_nothing_else_changes(root: Path) -> None:
    override = root / DATA / "overrides" / "config.toml"
    figures = root / DATA / "popularity.csv"
    figures.write_bytes(figures.read_bytes() + b"bart,4,1,org/bart,4\r\n")
    line, table = override.read_text(), figures.read_bytes().decode()
    write(root)
    versions = "torch 2.3.1, transformers 5.2.0"
    assert stated(override) == stated(figures) == versions
    assert override.read_text() == line.replace("torch 1.0, transformers 4.0", versions)
    assert figures.read_bytes().decode() == table.replace("nothing", versions)
