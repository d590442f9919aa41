"""The files of a stored run, as sinks read and write them."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from compilewatch.errors import StoreError
from compilewatch.files import failed, write_atomically


class RunFolder:
    """`outputs/<run>/`, accessed by relative paths. Raises StoreError."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically."""
        # `report` can write its thousand pages again, so they need not wait for the disk.
        write_atomically(self.path(name), data, durable=False)

    def names(self) -> tuple[str, ...]:
        """Return the relative paths (with slashes) of all complete files, sorted."""
        try:
            found = [path.relative_to(self._root) for path in self._root.rglob("*")]
            files = [path for path in found if (self._root / path).is_file()]
        except OSError as error:
            raise failed("read", self._root, error) from None
        return tuple(sorted(f.as_posix() for f in files if not _is_hidden(f)))

    def path(self, name: str) -> Path:
        """Return the path of a file, whether it exists or not."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.name:
            raise StoreError(f"a sink may not write {name!r}: it is outside of the run's folder")
        return self._root / path


def _is_hidden(path: Path) -> bool:
    """Whether a path is, or is inside of, a scratch folder or a temporary file."""
    return any(part.startswith(".") for part in path.parts)
