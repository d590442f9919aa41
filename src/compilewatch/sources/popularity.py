"""Downloads by architecture: a reviewed CSV file, `data/popularity.csv`.

Comment lines (`#`) at the top give the origin and date of the figures. They are followed by a
header and one row for each `model_type`, most used first.
"""

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from compilewatch.errors import ConfigError
from compilewatch.records import Record

COLUMNS = ("model_type", "downloads_30d", "models", "top_model", "top_model_downloads_30d")
LIBRARY_COLUMNS = ("library", "name", *COLUMNS[1:])


class Figure(Record, frozen=True, kw_only=True):
    """The figures of one architecture in a snapshot of the Hub; downloads are over 30 days."""

    model_type: str
    downloads: int
    models: int
    top_model: str
    top_model_downloads: int


def read_popularity(*paths: Path, library: str | None = None) -> dict[str, Figure]:
    """Read figures by model type; those of a later file replace those of an earlier one.

    With `library`, the files have a library and the name of a model in place of a model type, and
    the figures are those of this library by name. A file that does not exist has none. Raises
    ConfigError, with the line, if one is malformed.
    """
    columns = COLUMNS if library is None else LIBRARY_COLUMNS
    figures: dict[str, Figure] = {}
    for path in filter(Path.exists, paths):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"{path}: cannot be read: {exc}") from exc
        lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line[:1] != "#"]
        rows = csv.reader(line for _, line in lines)
        if tuple(next(rows, ())) != columns:
            raise ConfigError(f"{path}: the columns must be {','.join(columns)}")
        for row in rows:
            if library is not None and row[:1] != [library]:
                continue
            try:
                name, downloads, models, top_model, top_downloads = row[
                    len(columns) - len(COLUMNS) :
                ]
                figures[name] = Figure(
                    model_type=name,
                    downloads=int(downloads),
                    models=int(models),
                    top_model=top_model,
                    top_model_downloads=int(top_downloads),
                )
            except ValueError as exc:
                raise ConfigError(f"{path}, line {lines[rows.line_num - 1][0]}: {exc}") from exc
    return figures


def figures_of(models: Iterable[tuple[str, str, int]]) -> tuple[Figure, ...]:
    """Add up (model type, model, downloads) by model type; most used architecture first."""
    grouped: dict[str, list[tuple[int, str]]] = {}
    for model_type, model, downloads in models:
        grouped.setdefault(model_type, []).append((downloads, model))
    figures = [
        Figure(
            model_type=model_type,
            downloads=sum(downloads for downloads, _ in members),
            models=len(members),
            top_model=max(members)[1],
            top_model_downloads=max(members)[0],
        )
        for model_type, members in grouped.items()
    ]
    return tuple(sorted(figures, key=lambda f: (-f.downloads, f.model_type)))


def popularity_csv(figures: Iterable[Figure], provenance: Mapping[str, str]) -> str:
    """Return the text of a popularity file; `provenance` becomes its comment lines."""
    out = io.StringIO()
    for key, value in provenance.items():
        out.write(f"# {key}: {value}\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(msgspec.structs.astuple(figure) for figure in figures)
    return out.getvalue()
