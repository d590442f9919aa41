"""Writes every dashboard to `json/compilewatch/`, or with --check says which are out of date.

    python -m dashboards.build [--check]

The folder's name is the folder in Grafana (`foldersFromFilesStructure` of the provisioning).
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from dashboards.health import health, papers
from dashboards.model import model, reasons
from dashboards.overview import overview, public
from dashboards.profiles import profiles
from dashboards.queries import Json
from dashboards.targets import cost, targets

FOLDER = Path(__file__).parent / "json" / "compilewatch"
DASHBOARDS: tuple[Callable[[], Json], ...] = (
    *(overview, model, reasons, targets, cost, profiles, health, papers, public),
)


def text(made: Json) -> str:
    """A dashboard in Grafana's classic format, keys sorted, so that a change is a small diff."""
    return json.dumps(made, sort_keys=True, indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    check = "--check" in sys.argv[1:]
    wanted = {f"{made['uid']}.json": text(made) for made in (build() for build in DASHBOARDS)}
    present = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    stale = sorted(name for name in wanted | present if wanted.get(name) != present.get(name))
    if not check:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name in stale:
            path = FOLDER / name
            if name in wanted:
                path.write_text(wanted[name])
            else:
                path.unlink()
    said = "is out of date: run `make generate`" if check else "written"
    for name in stale:
        print(f"dashboards/json/compilewatch/{name} {said}")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main())
