"""What profiles promise, measured: against torch's own timer, against themselves, with a trace.

`scripts/bench.py` runs each function in a separate process, as torch belongs into workers:

    python -m scripts.profile_bench timer|itself|traced|option|waits
"""

import gc
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer

from compilewatch.extras.profiles import analysis as statistics
from compilewatch.extras.profiles.records import Verdict
from compilewatch.extras.profiles.worker import measuring
from scripts.timing import Figures, in_turns, limited

ROUNDS = 10
COMPARISONS = 200
TOLERANCE = 0.07
TRACE_LIMIT = 1.15
OPTION_TOLERANCE = 0.03
SLEEP_SECONDS = 0.020

Call = Callable[[], object]


def models() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """A layer stack, a convolution and attention, each with the shape of one of its samples."""
    torch.manual_seed(0)
    stack = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6)))
    convolution = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3))
    attention = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    parts = {"stack": (stack, (256,)), "convolution": (convolution, (3, 32, 32))}
    return parts | {"attention": (attention, (32, 128))}


def forward(module: nn.Module, *arguments: torch.Tensor) -> Call:
    """A call of a module in eval mode."""
    module.eval()

    def call() -> object:
        with torch.no_grad():
            return module(*arguments)

    return call


def cpu_times(call: Call, runs: int = 10) -> tuple[float, ...]:
    return measuring.measure(call, runs, 60.0).cpu_seconds


def against_timer() -> Figures:
    """The median of our timer divided by that of torch's, both of CPU time, alternately."""
    ratios: dict[str, float] = {}
    for name, (module, shape) in models().items():
        for batch in (1, 8, 64):
            call = forward(module, torch.randn(batch, *shape))
            call()
            timer = Timer("call()", globals={"call": call}, timer=time.process_time)
            rounds = [
                median(cpu_times(call, 30)) / median(timer.timeit(1).times[0] for _ in range(30))
                for _ in range(ROUNDS)
            ]
            ratios[f"{name} {batch}"] = round(median(rounds), 3)
    low, high = 1 - TOLERANCE, 1 + TOLERANCE
    return {"ratios": ratios, "within": all(low <= r <= high for r in ratios.values())}


def against_itself() -> Figures:
    """How often a thing counts as slower than itself, and how often 10 % more work is found."""
    matrix = torch.randn(96, 96)

    def work(count: int) -> Call:
        def call() -> None:
            for _ in range(count):
                torch.mm(matrix, matrix)

        return call

    def slower(first: int, second: int) -> bool:
        measures = [partial(cpu_times, work(count)) for count in (first, second)]
        return statistics.in_turns(*in_turns(measures, ROUNDS)).verdict is Verdict.SLOWER

    same = sum(slower(20, 20) for _ in range(COMPARISONS))
    more = sum(slower(20, 22) for _ in range(COMPARISONS))
    return {
        "comparisons": COMPARISONS,
        "slower_than_itself": same / COMPARISONS,
        "found_of_ten_percent": more / COMPARISONS,
        "within": same <= 0.02 * COMPARISONS and more >= 0.95 * COMPARISONS,
    }


def bert() -> Call:
    """A call of four of BERT's layers in full width."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(num_hidden_layers=4))
    return forward(model, torch.randint(5, 1000, (1, 64)))


def traced() -> Figures:
    """CPU time of BERT's forward under a profiler divided by that without one, alternately."""
    call = bert()

    def under() -> float:
        with profile(activities=[ProfilerActivity.CPU]):
            return median(cpu_times(call, 5))

    pairs = in_turns([lambda: median(cpu_times(call, 5)), under], ROUNDS)
    ratio = median(b / a for a, b in zip(*pairs, strict=True))
    return limited({"ratio": round(ratio, 3)}, ratio=TRACE_LIMIT)


def option() -> Figures:
    """CPU time of BERT after a trace as `--trace` takes it, divided by that without, alternately.

    Each is a separate process, as subjects are. A trace comes after the last round of its batch
    size, so that this is what it could do to the batch sizes after it, at most.
    """
    context = multiprocessing.get_context("fork")
    call = bert()
    call()

    def serve(pipe: Any, folder: Path | None) -> None:
        if folder is not None:
            measuring.traced(call, 3, folder)
        while pipe.recv():
            pipe.send(median(cpu_times(call, 5)))

    def served(folder: Path | None) -> Callable[[], float]:
        ours, theirs = context.Pipe()
        context.Process(target=serve, args=(theirs, folder), daemon=True).start()

        def measure() -> float:
            ours.send(True)
            return float(ours.recv())

        return measure

    with tempfile.TemporaryDirectory() as folder:
        pairs = in_turns([served(Path(folder)), served(None)], 2 * ROUNDS)
    ratio = median(a / b for a, b in zip(*pairs, strict=True))
    within = abs(ratio - 1) <= OPTION_TOLERANCE
    return {"ratio": round(ratio, 3), "limit": OPTION_TOLERANCE, "within": within}


def waits() -> Figures:
    """A wait of 20 ms in a call, as the division of its trace shows it."""

    def call() -> None:
        torch.ones(8) + 1
        time.sleep(SLEEP_SECONDS)

    found = measuring.divided(call, 5)
    python = found.nanoseconds[measuring.NO_FRAME, measuring.PYTHON] / 1e9
    spent = found.nanoseconds.total()
    return {
        "seconds": round(python, 5),
        "unaccounted_nanoseconds": found.total - spent,
        "within": spent == found.total and SLEEP_SECONDS <= python <= SLEEP_SECONDS * 1.25,
    }


FUNCTIONS = {
    "timer": against_timer,
    "itself": against_itself,
    "traced": traced,
    "option": option,
    "waits": waits,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # as in a profiling server: else each round begins with a long collection
    print(json.dumps(FUNCTIONS[sys.argv[1]]()))
