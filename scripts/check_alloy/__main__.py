"""Prints what is wrong with alloy/, a line each, and exits with 1; nothing and 0 where it is fine.

python -m scripts.check_alloy [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.check_alloy.checker import check
from scripts.check_alloy.layout import check_layout
from scripts.check_alloy.syntax import AlloyError, File, parse


def problems(folder: Path) -> list[str]:
    """Everything wrong with config.alloy and each file of sinks/, alone and together."""
    found: list[AlloyError] = []
    parsed: dict[Path, File] = {}
    sinks = sorted(folder.glob("sinks/*.alloy"))
    for path in (folder / "config.alloy", *sinks):
        try:
            text = path.read_text()
            parsed[path] = parse(str(path), text)
        except OSError as error:
            return [f"{path}: {error.strerror}: name the folder that holds config.alloy and sinks/"]
        except AlloyError as error:
            found.append(error)
        else:
            found += check_layout(parsed[path], text)
    if not sinks:
        return [f"{folder / 'sinks'}: no sink: config.alloy needs one file beside it"]
    if len(parsed) == len(sinks) + 1:
        config, *others = parsed.values()
        for sink in others:
            found += check([config, sink])
    return list(dict.fromkeys(map(str, found)))


def main() -> int:
    found = problems(Path(sys.argv[1] if len(sys.argv) > 1 else "alloy"))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
