"""What profiles promise, measured: against torch's own timer, against themselves, with a trace.

`scripts/bench.py` runs each function in a separate process, as torch belongs into workers:

    python -m scripts.profile_bench timer|itself|traced|option|waits
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer

from compilewatch.extras.profiles import analysis as statistics
from compilewatch.extras.profiles.analysis import Rounds
from compilewatch.extras.profiles.records import Verdict
from compilewatch.extras.profiles.worker import measuring

ROUNDS = 10
COMPARISONS = 200
TOLERANCE = 0.07
TRACE_LIMIT = 1.15
OPTION_TOLERANCE = 0.03
SLEEP_SECONDS = 0.020

Call = Callable[[], object]


def models() -> dict[str, Callable[[int], Call]]:
    """A layer stack, a convolution and attention; each makes a call of a batch size."""
    torch.manual_seed(0)
    stack = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6))).eval()
    convolution = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3)).eval()
    attention = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True).eval()
    shapes = {"stack": (256,), "convolution": (3, 32, 32), "attention": (32, 128)}

    def of(module: nn.Module, shape: tuple[int, ...]) -> Callable[[int], Call]:
        def make(batch: int) -> Call:
            example = torch.randn(batch, *shape)

            def call() -> object:
                with torch.no_grad():
                    return module(example)

            return call

        return make

    parts = {"stack": stack, "convolution": convolution, "attention": attention}
    return {name: of(module, shapes[name]) for name, module in parts.items()}


def in_turns(first: Call, second: Call, runs: int = 10) -> tuple[Rounds, Rounds]:
    """CPU times of two calls in interleaved rounds."""
    taken: tuple[list[tuple[float, ...]], list[tuple[float, ...]]] = ([], [])
    for number in range(ROUNDS):
        pair = ((first, taken[0]), (second, taken[1]))
        for call, into in pair if number % 2 == 0 else reversed(pair):
            into.append(measuring.measure(call, runs, 60.0).cpu_seconds)
    return taken


def against_timer() -> dict[str, Any]:
    """The median of our timer divided by that of torch's, both of CPU time, alternately."""
    ratios: dict[str, float] = {}
    for name, make in models().items():
        for batch in (1, 8, 64):
            call = make(batch)
            call()
            torchs = Timer("call()", globals={"call": call}, timer=time.process_time)
            found = []
            for _ in range(ROUNDS):
                ours = median(measuring.measure(call, 30, 60.0).cpu_seconds)
                found.append(ours / median(torchs.timeit(1).times[0] for _ in range(30)))
            ratios[f"{name} {batch}"] = round(median(found), 3)
    low, high = 1 - TOLERANCE, 1 + TOLERANCE
    return {"ratios": ratios, "within": all(low <= r <= high for r in ratios.values())}


def against_itself() -> dict[str, Any]:
    """How often a thing counts as slower than itself, and how often 10 % more work is found."""
    matrix = torch.randn(96, 96)

    def work(count: int) -> Call:
        def call() -> None:
            for _ in range(count):
                torch.mm(matrix, matrix)

        return call

    same = more = 0
    for _ in range(COMPARISONS):
        same += statistics.in_turns(*in_turns(work(20), work(20))).verdict is Verdict.SLOWER
        more += statistics.in_turns(*in_turns(work(20), work(22))).verdict is Verdict.SLOWER
    return {
        "comparisons": COMPARISONS,
        "slower_than_itself": same / COMPARISONS,
        "found_of_ten_percent": more / COMPARISONS,
        "within": same <= 0.02 * COMPARISONS and more >= 0.95 * COMPARISONS,
    }


def bert() -> Call:
    """A call of four of BERT's layers in full width."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(num_hidden_layers=4)).eval()
    ids = torch.randint(5, 1000, (1, 64))

    def call() -> object:
        with torch.no_grad():
            return model(input_ids=ids)

    return call


def traced() -> dict[str, Any]:
    """CPU time of BERT's forward under a profiler divided by that without one, alternately."""
    plain = bert()
    ratios = []
    for _ in range(ROUNDS):
        without = median(measuring.measure(plain, 5, 60.0).cpu_seconds)
        with profile(activities=[ProfilerActivity.CPU]):
            under = median(measuring.measure(plain, 5, 60.0).cpu_seconds)
        ratios.append(under / without)
    found = median(ratios)
    return {"ratio": round(found, 3), "limit": TRACE_LIMIT, "within": found <= TRACE_LIMIT}


def option() -> dict[str, Any]:
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
            pipe.send(median(measuring.measure(call, 5, 60.0).cpu_seconds))

    with tempfile.TemporaryDirectory() as folder:
        pipes = []
        for place in (Path(folder), None):
            ours, theirs = context.Pipe()
            context.Process(target=serve, args=(theirs, place), daemon=True).start()
            pipes.append(ours)
        ratios = []
        for number in range(2 * ROUNDS):
            taken: dict[int, float] = {}
            for index in (0, 1) if number % 2 == 0 else (1, 0):
                pipes[index].send(True)
                taken[index] = pipes[index].recv()
            ratios.append(taken[0] / taken[1])
        for pipe in pipes:
            pipe.send(False)
    found = median(ratios)
    return {
        "ratio": round(found, 3),
        "limit": OPTION_TOLERANCE,
        "within": abs(found - 1) <= OPTION_TOLERANCE,
    }


def waits() -> dict[str, Any]:
    """A wait of 20 ms in a call, as the division of its trace shows it."""

    def call() -> None:
        torch.ones(8) + 1
        time.sleep(SLEEP_SECONDS)

    found = measuring.divided(call, 5)
    python = found.nanoseconds[""]["python"] / 1e9
    spent = sum(v for kinds in found.nanoseconds.values() for v in kinds.values())
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
