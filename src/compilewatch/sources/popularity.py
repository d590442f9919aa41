"""Downloads by architecture: a reviewed CSV file, `data/popularity.csv`.

Comment lines (`#`) at the top give the origin and date of the figures. They are followed by a
header and one row for each `model_type`, most used first.
"""

import csv
from pathlib import Path

from compilewatch.errors import ConfigError

COLUMNS = ("model_type", "downloads_30d", "models", "top_model", "top_model_downloads_30d")
LIBRARY_COLUMNS = ("library", "name", *COLUMNS[1:])


def read_popularity(*paths: Path, library: str | None = None) -> dict[str, int]:
    """Read downloads by model type; those of a later file replace those of an earlier one.

    With `library`, the files have a library and the name of a model in place of a model type, and
    the downloads are those of this library by name. A file that does not exist has none. Raises
    ConfigError, with the line, if one is malformed.
    """
    columns = COLUMNS if library is None else LIBRARY_COLUMNS
    downloads: dict[str, int] = {}
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
                name, count, _, _, _ = row[len(columns) - len(COLUMNS) :]
                downloads[name] = int(count)
            except ValueError as exc:
                raise ConfigError(f"{path}, line {lines[rows.line_num - 1][0]}: {exc}") from exc
    return downloads
