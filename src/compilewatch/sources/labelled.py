"""Labelled texts: a CSV file with a text and a label in each row."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compilewatch.errors import UsageError, did_you_mean
from compilewatch.files import DamagedError, from_json

FIELD_CHARACTERS = 16 * 2**20
"""The most that one field may have; csv's own limit is 128 KiB."""


@dataclass(frozen=True, kw_only=True)
class LabelledTexts:
    """The rows of a file: `labels` are as they stand there, `lines` are their line numbers.

    `mappings` give the class of a label, None for a file that uses numbers or the model's names.
    """

    path: Path
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    lines: tuple[int, ...]
    mappings: Mapping[str, int] | None = None

    def classes(self, names: Sequence[str]) -> list[int]:
        """The class of each row, for a model whose classes have these names.

        Raises UsageError with the line of a label that is unknown.
        """
        known = dict(self.mappings) if self.mappings is not None else {}
        if self.mappings is None:
            known = {name: index for index, name in enumerate(names)}
        classes = []
        for label, line in zip(self.labels, self.lines, strict=True):
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
    texts: list[str] = []
    labels: list[str] = []
    lines: list[int] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            for column in (text_column, label_column):
                if column not in (rows.fieldnames or ()):
                    known = ", ".join(rows.fieldnames or ()) or "none"
                    raise UsageError(f"{path} has no column {column!r}; its columns are {known}")
            for row in rows:
                if row[text_column] is None or row[label_column] in (None, ""):
                    raise UsageError(f"{path}:{rows.line_num}: this row has no text or no label")
                texts.append(row[text_column])
                labels.append(row[label_column].strip())
                lines.append(rows.line_num)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} is not a CSV file in UTF-8: {error}") from None
    if not texts:
        raise UsageError(f"{path} has no rows")
    return LabelledTexts(
        path=path,
        texts=tuple(texts),
        labels=tuple(labels),
        lines=tuple(lines),
        mappings=_read_mappings(mappings) if mappings is not None else None,
    )


def _read_mappings(path: Path) -> dict[str, int]:
    """Read names and classes: `{name: class}` or `{class: name}`, also below `label2id`."""
    try:
        content = from_json(path.read_bytes(), dict[str, object])
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except DamagedError as error:
        raise UsageError(f"{path} is not a JSON object: {error}") from None
    for key in ("label2id", "label_to_id", "id2label", "id_to_label"):
        if isinstance(content.get(key), dict):
            content = content[key]  # type: ignore[assignment]
            break
    if all(isinstance(value, int) for value in content.values()):
        return {str(name): int(value) for name, value in content.items()}  # type: ignore[call-overload]
    if all(name.isdigit() and isinstance(value, str) for name, value in content.items()):
        return {str(value): int(name) for name, value in content.items()}
    raise UsageError(f"{path}: names must map to numbers, or numbers to names")
