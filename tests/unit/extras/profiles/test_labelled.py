"""Labelled texts from CSV files, good and bad, and scores against scikit-learn itself."""

from pathlib import Path

import pytest

from compilewatch.errors import UsageError
from compilewatch.extras.profiles.labelled import LabelledTexts, accuracy_of, read_labelled

NAMES = ("play", "alarm", "weather")


def texts(folder: Path, content: str, mappings: str = "") -> LabelledTexts:
    (folder / "data.csv").write_bytes(content.encode("latin-1"))
    (folder / "names.json").write_text(mappings)
    names = folder / "names.json" if mappings else None
    return read_labelled(folder / "data.csv", "text", "label", names)


def test_labels_are_names_or_numbers_of_the_model_or_mapped(tmp_path: Path) -> None:
    own = texts(tmp_path, 'text,label\n"a, b",alarm\nc,2\n')
    assert (own.texts, own.classes(NAMES)) == (["a, b", "c"], [1, 2])
    for mappings in (
        '{"x": 4, "y": 5}',
        '{"4": "x", "5": "y"}',
        '{"label2id": {"x": 4, "y": 5}}',
    ):
        assert texts(tmp_path, "text,label\na,y\nb,x\n", mappings).classes(NAMES) == [5, 4]


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    for content, mappings, said in (
        ("text,labels\na,b\n", "", "has no column 'label'; its columns are text, labels"),
        ("", "", "has no column 'text'; its columns are none"),
        ("text,label\n", "", "has no rows"),
        ("text,label\na,alarm\nb,alarn\n", "", "3: unknown label 'alarn'; did you mean 'alarm'"),
        ("text,label\na,\n", "", "data.csv:2: this row has no text or no label"),
        ("text,label\n\xfc,1\n", "", "not a CSV file in UTF-8"),
        ("text,label\na,1\n", "[1]", r"names\.json"),
        ("text,label\na,1\n", '{"a": "b"}', r"names\.json"),
    ):
        with pytest.raises(UsageError, match=said):
            texts(tmp_path, content, mappings).classes(NAMES)


def test_classes_that_do_not_occur_do_not_lower_the_scores() -> None:
    scores = accuracy_of([0, 0, 7, 7], [0, 7, 7, 7], eager=[0, 0, 0, 7])
    assert (scores.samples, scores.labels, scores.accuracy) == (4, 2, 0.75)
    assert scores.f1_macro == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert scores.disagreements == 2
    assert accuracy_of([0], [0]).disagreements is None
