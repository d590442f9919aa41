"""What each replacement of an attribute of torch saves, measured alone and alternately.

`python -m scripts.shortcuts_bench [ROUNDS]`: in each round, a process for each shortcut of
`worker/process/shortcuts.py`, one without any and one with all evaluates the same classes, each in
a fork. It prints JSON lines with the CPU time of the forks relative to that without shortcuts in
the same round: the median over the rounds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from compilewatch.records import ClassBuild, Depth, ModelSpec, Request, Target, Tier
from scripts.timing import cpu_of_children

CLASSES = (
    *("BertModel", "T5Model", "ViTModel", "MixtralForCausalLM", "Wav2Vec2Model", "CLIPModel"),
    *("BartModel", "DeformableDetrModel", "GPT2LMHeadModel", "LongformerModel"),
)
ALL, NONE = "all", "none"


def request(name: str) -> Request:
    model = ModelSpec(source="library", name=name, build=ClassBuild(class_name=name))
    return Request(
        model=model,
        target=Target(),
        key=name,
        tier=Tier.FAKE,
        depth=Depth.REDUCED,
        keep_artifacts=False,
    )


def measure(which: str) -> None:
    """Evaluate all classes with these shortcuts, and print the CPU time and the verdicts."""
    from compilewatch.worker import phases
    from compilewatch.worker.process import shortcuts, warmup

    warmup.import_modules(["dynamo"])
    if which != NONE:
        shortcuts.take(None if which == ALL else [which])
    verdicts: dict[str, str] = {}
    for name in CLASSES:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            with tempfile.TemporaryDirectory() as folder:
                found = phases.evaluate(request(name), Tier.FAKE, Path(folder), lambda _: None)
            result = found.result
            os.write(write, f"{result.status} {result.graphs} {result.graph_breaks}".encode())
            os._exit(0)
        os.close(write)
        verdicts[name] = os.read(read, 1000).decode()
        os.close(read)
        os.waitpid(child, 0)
    print(json.dumps({"seconds": cpu_of_children(), "verdicts": verdicts}))


def main() -> None:
    from compilewatch.worker.process.shortcuts import every_shortcut

    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    names = (NONE, ALL, *(each.__name__ for each in every_shortcut()))
    ratios: dict[str, list[float]] = {name: [] for name in names}
    expected: dict[str, str] | None = None
    for _ in range(rounds):
        seconds: dict[str, float] = {}
        for name in names:
            command = [sys.executable, "-m", "scripts.shortcuts_bench", "--measure", name]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            expected = expected or found["verdicts"]
            assert found["verdicts"] == expected, (name, found["verdicts"], expected)
            seconds[name] = found["seconds"]
        for name, spent in seconds.items():
            ratios[name].append(spent / seconds[NONE])
    for name, values in ratios.items():
        line = {"shortcut": name, "cpu_ratio": round(median(values), 3), "rounds": values}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2])
    else:
        main()
