from pathlib import Path

import pytest

from compilewatch.data import POPULARITY
from compilewatch.errors import ConfigError
from compilewatch.sources.popularity import popularity_csv, read_popularity
from compilewatch.sources.transformers import read_library


def test_what_is_written_is_read(tmp_path: Path) -> None:
    models = [("bert", "a/x", 5), ("t5", "b/y", 9), ("bert", "c/z", 8)]
    path = tmp_path / "popularity.csv"
    assert read_popularity(path) == {}
    path.write_text(popularity_csv(models, {"source": "a test", "date": "2025-01-31"}))
    assert read_popularity(path) == {"bert": 13, "t5": 9}
    comments, _, rows = path.read_text().partition("model_type,")
    assert comments == "# source: a test\n# date: 2025-01-31\n"
    assert rows.splitlines()[1:] == ["bert,13,2,c/z,8", "t5,9,1,b/y,9"]


HEADER = "model_type,downloads_30d,models,top_model,top_model_downloads_30d\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n", "the columns must be model_type,"),
        ("", "the columns must be model_type,"),
        (f"# c\n{HEADER}bert,many,1,x,1\n", "line 3: invalid literal"),
        (f"# c\n{HEADER}t5,1,1,x,1\nbert,1\n", "line 4: not enough values"),
    ],
)
def test_malformed_files_name_the_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "popularity.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"{path}.*{says}"):
        read_popularity(path)


def test_the_reviewed_file_says_where_and_when_and_fits_the_library(scans: Path) -> None:
    text = POPULARITY.read_text()
    assert "# source: " in text
    assert "# date: 2" in text
    figures = read_popularity(POPULARITY)
    assert [*figures.values()] == sorted(figures.values(), reverse=True)
    assert set(figures) <= {c.model_type for c in read_library(cache=scans).classes}
