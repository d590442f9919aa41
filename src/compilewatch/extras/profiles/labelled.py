"""Labelled texts from a CSV file, and the scores of a classifier on them."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compilewatch.errors import UsageError, did_you_mean
from compilewatch.files import DamagedError, from_json
from compilewatch.records import Accuracy

FIELD_CHARACTERS = 16 * 2**20
"""The most that one field may have; csv's own limit is 128 KiB."""


@dataclass(frozen=True, kw_only=True)
class LabelledTexts:
    """The rows of a file: text, label as it stands there, and number of its line.

    `mappings` give the class of a label, None for a file that uses numbers or the model's names.
    """

    path: Path
    rows: tuple[tuple[str, str, int], ...]
    mappings: Mapping[str, int] | None = None

    @property
    def texts(self) -> list[str]:
        return [text for text, _, _ in self.rows]

    def classes(self, names: Sequence[str]) -> list[int]:
        """The class of each row, for a model whose classes have these names.

        Raises UsageError with the line of a label that is unknown.
        """
        known = self.mappings
        if known is None:
            known = {name: index for index, name in enumerate(names)}
        classes = []
        for _, label, line in self.rows:
            if label in known:
                classes.append(known[label])
            elif self.mappings is None and label.lstrip("-").isdigit():
                classes.append(int(label))
            else:
                hint = did_you_mean(label, known)
                shown = ", ".join(list(known)[:8]) or "none"
                raise UsageError(
                    f"{self.path}:{line}: unknown label {label!r}{hint}; the known ones are {shown}"
                    " (give names and classes with --label-mappings)"
                )
        return classes


def read_labelled(
    path: Path, text_column: str, label_column: str, mappings: Path | None = None
) -> LabelledTexts:
    """Read a file. Raises UsageError for one that is missing, empty or lacks a column."""
    csv.field_size_limit(FIELD_CHARACTERS)
    rows: list[tuple[str, str, int]] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            for column in (text_column, label_column):
                if column not in (reader.fieldnames or ()):
                    known = ", ".join(reader.fieldnames or ()) or "none"
                    raise UsageError(f"{path} has no column {column!r}; its columns are {known}")
            for row in reader:
                text, label = row[text_column], row[label_column]
                if text is None or not label:
                    raise UsageError(f"{path}:{reader.line_num}: this row has no text or no label")
                rows.append((text, label.strip(), reader.line_num))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} is not a CSV file in UTF-8: {error}") from None
    if not rows:
        raise UsageError(f"{path} has no rows")
    classes = _read_mappings(mappings) if mappings is not None else None
    return LabelledTexts(path=path, rows=tuple(rows), mappings=classes)


def _read_mappings(path: Path) -> dict[str, int]:
    """Read names and classes: `{name: class}` or `{class: name}`, also below `label2id`."""
    try:
        content = from_json(path.read_bytes(), dict[str, Any])
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except DamagedError as error:
        raise UsageError(f"{path} is not a JSON object: {error}") from None
    keys = ("label2id", "label_to_id", "id2label", "id_to_label")
    content = next((content[k] for k in keys if isinstance(content.get(k), dict)), content)
    if all(isinstance(value, int) for value in content.values()):
        return content
    if all(name.isdigit() and isinstance(value, str) for name, value in content.items()):
        return {value: int(name) for name, value in content.items()}
    raise UsageError(f"{path}: names must map to numbers, or numbers to names")


def accuracy_of(
    truth: Sequence[int],
    predicted: Sequence[int],
    *,
    eager: Sequence[int] | None = None,
    seconds: float | None = None,
) -> Accuracy:
    """Score predictions by scikit-learn; classes that neither side contains do not count."""
    from sklearn.metrics import accuracy_score, f1_score

    return Accuracy(
        samples=len(truth),
        labels=len(set(truth) | set(predicted)),
        accuracy=float(accuracy_score(truth, predicted)),
        f1_macro=float(f1_score(truth, predicted, average="macro", zero_division=0.0)),
        f1_weighted=float(f1_score(truth, predicted, average="weighted", zero_division=0.0)),
        disagreements=sum(a != b for a, b in zip(eager, predicted, strict=True))
        if eager is not None
        else None,
        seconds=seconds,
    )
