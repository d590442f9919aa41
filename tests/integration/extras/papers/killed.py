"""Runs the shipped papers on prepared replies and kills itself at the border of a stage."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from compilewatch.extras.papers.providers import ScriptedProvider
from compilewatch.extras.papers.records import StageResult
from compilewatch.extras.papers.store import PaperFolder
from tests import papers as world

outputs, stage, when = Path(sys.argv[1]), sys.argv[2], sys.argv[3]


def kill(result: StageResult) -> None:
    if result.stage == stage:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    append = PaperFolder.append

    def killed_before(folder: PaperFolder, result: StageResult) -> None:
        if when == "before":
            kill(result)
        append(folder, result)

    PaperFolder.append = killed_before  # type: ignore[method-assign,assignment]
    papers = world.papers_of(world.INPUTS / "library", outputs / "cache", 3)
    provider = ScriptedProvider(world.REPLIES)
    pipeline = world.pipeline(
        outputs,
        provider,
        world.INPUTS / "library",
        papers,
        observer=kill if when == "after" else lambda _: None,
    )
    pipeline.run(papers)
    provider.close()


if __name__ == "__main__":
    main()
