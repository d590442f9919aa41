from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch import data
from compilewatch.errors import ConfigError
from compilewatch.sources.popularity import figures_of, popularity_csv, read_popularity
from compilewatch.sources.transformers import read_library

REVIEWED = data.POPULARITY


def test_what_is_written_is_read(tmp_path: Path) -> None:
    figures = figures_of([("bert", "a/x", 5), ("t5", "b/y", 9), ("bert", "c/z", 8)])
    path = tmp_path / "popularity.csv"
    path.write_text(popularity_csv(figures, {"source": "a test", "date": "2025-01-31"}))
    assert path.read_text().startswith("# source: a test\n# date: 2025-01-31\n")
    read = read_popularity(path)
    assert tuple(read.values()) == figures
    assert list(read) == ["bert", "t5"]
    bert = read["bert"]
    assert (bert.downloads, bert.models, bert.top_model) == (13, 2, "c/z")


def test_no_file_means_no_figures(tmp_path: Path) -> None:
    assert read_popularity(tmp_path / "none.csv") == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n", "the columns must be model_type,"),
        ("", "the columns must be model_type,"),
        ("# c\nHEADER\nbert,many,1,x,1\n", "line 3: invalid literal"),
        ("# c\nHEADER\nt5,1,1,x,1\nbert,1\n", "line 4: not enough values"),
    ],
)
def test_malformed_files_name_the_line(tmp_path: Path, text: str, says: str) -> None:
    header = "model_type,downloads_30d,models,top_model,top_model_downloads_30d"
    path = tmp_path / "popularity.csv"
    path.write_text(text.replace("HEADER", header))
    with pytest.raises(ConfigError) as caught:
        read_popularity(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_reviewed_file_says_where_and_when_and_fits_the_library(scans: Path) -> None:
    comments = [line for line in REVIEWED.read_text().splitlines() if line.startswith("#")]
    assert any(line.startswith("# source: ") for line in comments)
    assert any(line.startswith("# date: 2") for line in comments)
    figures = read_popularity(REVIEWED)
    downloads = [figure.downloads for figure in figures.values()]
    assert downloads == sorted(downloads, reverse=True)
    families = {c.model_type for c in read_library(cache=scans).classes}
    assert set(figures) <= families
