"""Labelled texts from CSV files, good and bad."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.errors import UsageError
from compilewatch.sources.labelled import read_labelled

NAMES = ("play", "alarm", "weather")


def written(folder: Path, text: str, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_labels_are_names_or_numbers_of_the_model(tmp_path: Path) -> None:
    path = written(tmp_path, 'text,label\n"a, b",alarm\nc,2\n')
    found = read_labelled(path, "text", "label")
    assert found.texts == ("a, b", "c")
    assert found.classes(NAMES) == [1, 2]


@pytest.mark.parametrize(
    "mappings", ['{"x": 4, "y": 5}', '{"4": "x", "5": "y"}', '{"label2id": {"x": 4, "y": 5}}']
)
def test_mappings_give_the_classes(tmp_path: Path, mappings: str) -> None:
    path = written(tmp_path, "text,label\na,y\nb,x\n")
    names = written(tmp_path, mappings, "names.json")
    assert read_labelled(path, "text", "label", names).classes(NAMES) == [5, 4]


def test_an_unknown_label_names_its_line_and_a_near_one(tmp_path: Path) -> None:
    path = written(tmp_path, "text,label\na,play\nb,alarn\n")
    found = read_labelled(path, "text", "label")
    with pytest.raises(
        UsageError, match=r"data.csv:3: unknown label 'alarn'; did you mean 'alarm'"
    ):
        found.classes(NAMES)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("text,labels\na,b\n", "has no column 'label'; its columns are text, labels"),
        ("", "has no column 'text'; its columns are none"),
        ("text,label\n", "has no rows"),
        ("text,label\na\n", "data.csv:2: this row has no text or no label"),
        ("text,label\na,\n", "data.csv:2: this row has no text or no label"),
    ],
)
def test_a_file_that_lacks_something(tmp_path: Path, content: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_labelled(written(tmp_path, content), "text", "label")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_labelled(tmp_path / "none.csv", "text", "label")
    path = tmp_path / "latin.csv"
    path.write_bytes("text,label\nü,1\n".encode("latin-1"))
    with pytest.raises(UsageError, match="not a CSV file in UTF-8"):
        read_labelled(path, "text", "label")
    good = written(tmp_path, "text,label\na,1\n")
    for content in ("[1]", "nothing", '{"a": "b"}'):
        names = written(tmp_path, content, "names.json")
        with pytest.raises(UsageError, match=r"names\.json"):
            read_labelled(good, "text", "label", names)
