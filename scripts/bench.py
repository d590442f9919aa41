"""Measures what docs/benchmarks.md states; prints one JSON line a benchmark.

    make bench                     # all, about three hours on two cores
    make bench ARGS="deepseek_v3"  # some, by name

Every figure is of complete commands, as a user runs them, in a fresh outputs folder.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from compilewatch.extras.monitor.view import Monitor
from compilewatch.records import Plan
from compilewatch.sinks.loki import LokiSink
from compilewatch.sinks.pushgateway import PushgatewaySink
from compilewatch.store import RunFolder, Store
from scripts.executor_bench import executor_health, executor_kills, sandbox_cost
from scripts.gate_bench import gate_cost, gate_false_alarms, gate_session, gate_start
from scripts.minimal_bench import measure
from scripts.overview_bench import overview_queries
from tests import factories, recorded, services
from tests.doubles.loki import loki
from tests.run_folder import VIEW, line, stamp, with_log

PROGRAM = Path(sys.executable).with_name("compilewatch")
JOBS = 2


def compilewatch(*arguments: str) -> tuple[float, dict[str, Any]]:
    """Wall seconds of one command, and what it printed with --json."""
    started = time.monotonic()
    done = subprocess.run(
        [str(PROGRAM), *arguments, "--json"], stdout=subprocess.PIPE, check=True, text=True
    )
    return time.monotonic() - started, json.loads(done.stdout)


def library(output: Path, modes: str, limit_minutes: float, fresh: bool = True) -> dict[str, Any]:
    """The complete library at reduced depth, main variant."""
    wall, run = compilewatch(
        *("sweep", "--source", "library", "--all", "--depth", "reduced", "--modes", modes),
        *("--variants", "main"),
        *("--jobs", str(JOBS), "--output", str(output), *(["--fresh"] if fresh else [])),
    )
    summary = run["summary"]
    return {
        "wall_seconds": round(wall, 1),
        "limit_seconds": limit_minutes * 60,
        "requests": summary["planned"],
        "verdicts": summary["verdicts"],
        "coverage": round(summary["verdicts"] / summary["planned"], 4),
        "reused": summary["reused"],
        "overhead": summary["overhead"] and round(summary["overhead"], 3),
        "within": wall <= limit_minutes * 60,
    }


def library_eval(output: Path) -> dict[str, Any]:
    """Base, CausalLM and ConditionalGeneration classes, eval: 25 minutes, overhead 1.15."""
    figures = library(output, "eval", 25)
    figures["overhead_limit"] = 1.15
    figures["within"] = figures["within"] and figures["overhead"] <= 1.15
    return figures


def library_rerun(output: Path) -> dict[str, Any]:
    """The same again with nothing changed: 5 seconds. Needs library_eval before it."""
    return library(output, "eval", 5 / 60, fresh=False)


def library_eval_train(output: Path) -> dict[str, Any]:
    """Eval and train: 60 minutes."""
    return library(output, "eval,train", 60)


def library_devices(output: Path) -> dict[str, Any]:
    """Eval on a declared CUDA device and on the CPU, in interleaved eighths: at most 1.15 times."""
    seconds = {"cpu": 0.0, "cuda": 0.0}
    verdicts = {"cpu": 0, "cuda": 0}
    for part in range(1, 9):
        for device in sorted(seconds, reverse=part % 2 == 0):
            wall, run = compilewatch(
                *("sweep", "--source", "library", "--all", "--depth", "reduced"),
                *("--variants", "main", "--device", device, "--shard", f"{part}/8"),
                *("--jobs", str(JOBS), "--output", str(output), "--fresh"),
            )
            seconds[device] += wall
            verdicts[device] += run["summary"]["verdicts"]
    ratio = seconds["cuda"] / seconds["cpu"]
    return {
        "wall_seconds": {device: round(result, 1) for device, result in seconds.items()},
        "verdicts": verdicts,
        "ratio": round(ratio, 3),
        "ratio_limit": 1.15,
        "within": ratio <= 1.15,
    }


def row(output: Path, target: str, top: int, depth: str, limit_minutes: float) -> dict[str, Any]:
    """One target over the most used architectures: so many minutes, 95 % verdicts."""
    wall, run = compilewatch(
        *("sweep", "--source", "library", "--top", str(top), "--targets", target),
        *("--depth", depth, "--jobs", str(JOBS), "--output", str(output), "--fresh"),
    )
    summary = run["summary"]
    coverage = summary["verdicts"] / summary["planned"]
    return {
        "wall_seconds": round(wall, 1),
        "limit_seconds": limit_minutes * 60,
        "requests": summary["planned"],
        "verdicts": summary["verdicts"],
        "coverage": round(coverage, 4),
        "coverage_limit": 0.95,
        "statuses": summary["statuses"],
        "within": wall <= limit_minutes * 60 and coverage >= 0.95,
    }


def export_100(output: Path) -> dict[str, Any]:
    """Non-strict export of the 100 most used architectures at full depth: 8 minutes."""
    return row(output, "export:non_strict", 100, "full", 8)


def inductor_10(output: Path) -> dict[str, Any]:
    """Inductor on ten reduced architectures: 10 minutes."""
    return row(output, "inductor", 10, "reduced", 10)


def xla_25(output: Path) -> dict[str, Any]:
    """XLA capture and CPU compile of 25 reduced architectures: 10 minutes."""
    return row(output, "xla", 25, "reduced", 10)


def ray_100(output: Path) -> dict[str, Any]:
    """The 100 most used architectures, one after the other: locally and on Ray, on this machine.

    15 % slower, the start of a cluster included. RAY_MODELS selects fewer models.
    """
    models = os.environ.get("RAY_MODELS", "100")
    walls: dict[str, float] = {}
    statuses: dict[str, Any] = {}
    for launcher in ("local", "ray"):
        walls[launcher], run = compilewatch(
            *("sweep", "--source", "library", "--top", models, "--depth", "reduced", "--fresh"),
            *("--launcher", launcher, "--jobs", str(JOBS), "--output", str(output / launcher)),
        )
        statuses[launcher] = run["summary"]["statuses"]
    slower = walls["ray"] / walls["local"] - 1
    return {
        "models": int(models),
        "wall_seconds": round(walls["ray"], 1),
        "local_seconds": round(walls["local"], 1),
        "slower": round(slower, 3),
        "slower_limit": 0.15,
        "same_statuses": statuses["local"] == statuses["ray"],
        "within": slower <= 0.15 and statuses["local"] == statuses["ray"],
    }


def deepseek_v3(output: Path) -> dict[str, Any]:  # noqa: ARG001
    """DeepSeek-V3's published configuration (671 B parameters) at full depth: 60 s, 1 GiB."""
    wall, result = compilewatch(
        *("explain", "DeepseekV3ForCausalLM", "--depth", "full"),
    )
    return {
        "wall_seconds": round(wall, 1),
        "limit_seconds": 60,
        "peak_memory_bytes": result["peak_memory_bytes"],
        "limit_bytes": 2**30,
        "parameters": result["parameters"],
        "status": result["status"],
        "within": wall <= 60 and result["peak_memory_bytes"] <= 2**30,
    }


def deepseek_v3_cuda(output: Path) -> dict[str, Any]:  # noqa: ARG001
    """The same for a CUDA device that is only declared, in bfloat16: 30 s of CPU time, 0.7 GiB."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _, result = compilewatch(
        *("explain", "DeepseekV3ForCausalLM", "--depth", "full", "--device", "cuda"),
        *("--dtype", "bfloat16"),
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    limit_bytes = int(0.7 * 2**30)
    return {
        "cpu_seconds": round(spent, 1),
        "limit_seconds": 30,
        "peak_memory_bytes": result["peak_memory_bytes"],
        "limit_bytes": limit_bytes,
        "parameters": result["parameters"],
        "dtype": result["dtype"],
        "status": result["status"],
        "within": spent <= 30 and result["peak_memory_bytes"] <= limit_bytes,
    }


def help_latency(output: Path) -> dict[str, Any]:  # noqa: ARG001
    """`compilewatch --help`, median of nine: 0.3 s."""
    walls = []
    for _ in range(9):
        started = time.monotonic()
        subprocess.run([str(PROGRAM), "--help"], stdout=subprocess.DEVNULL, check=True)
        walls.append(time.monotonic() - started)
    median = sorted(walls)[4]
    return {"wall_seconds": round(median, 3), "limit_seconds": 0.3, "within": median <= 0.3}


def pipeline(output: Path) -> dict[str, Any]:
    """`make pipeline` on the default list in two shards, environment ready: 5 minutes."""
    folders = {
        "PIPELINE_DIR": str(output / "build"),
        "COMPILEWATCH_OUTPUT_DIR": str(output / "outputs"),
    }
    started = time.monotonic()
    subprocess.run(
        ["make", "pipeline"],
        stdout=subprocess.DEVNULL,
        check=True,
        env=os.environ | folders | {"SOURCE": "library", "FRESH": "true"},
    )
    wall = time.monotonic() - started
    files = (output / "build" / "archive" / "SHA256SUMS").read_text().splitlines()
    return {
        "wall_seconds": round(wall, 1),
        "limit_seconds": 300,
        "archived_files": len(files),
        "within": wall <= 300,
    }


def publish_scale(output: Path) -> dict[str, Any]:
    """1,000 models x 6 targets x 2 modes to a real Pushgateway: 5 s, 100,000 series."""
    view = recorded.run(1000)
    walls = []
    with services.pushgateway(output) as gateway:
        sink = PushgatewaySink(factories.settings(pushgateway_url=gateway.url))
        for _ in range(5):  # the first fills it, the others replace
            started = time.monotonic()
            sink.publish(view, RunFolder(output))
            walls.append(time.monotonic() - started)
        lines = gateway.get("/metrics").splitlines()
    series = sum(b'job="compilewatch"' in line for line in lines)
    return {
        "wall_seconds": round(sorted(walls)[2], 2),
        "wall_seconds_most": round(max(walls), 2),
        "limit_seconds": 5,
        "results": len(view.results),
        "series": series,
        "series_limit": 100_000,
        "within": max(walls) <= 5 and series <= 100_000,
    }


def loki_10k(output: Path) -> dict[str, Any]:
    """10,000 log lines of a stored run to a mock of Loki's push API: 10 s, none lost."""
    lines = [line(stamp(nanoseconds=n), f"org/model-{n}", detail="x" * 500) for n in range(10_000)]
    with loki() as server:
        started = time.monotonic()
        LokiSink(factories.settings(loki_url=server.url)).publish(
            VIEW, with_log(output / "loki", lines)
        )
        wall = time.monotonic() - started
        lost = len(set(lines) - {held.encode() for held in server.lines()})
    within = wall <= 10 and lost == 0
    return {"wall_seconds": round(wall, 2), "limit_seconds": 10, "lost": lost, "within": within}


def profile(output: Path) -> dict[str, Any]:
    """What `make profile` runs, after its set-up: 2 minutes."""
    wall, figures = compilewatch(
        *("profile", "infer", "BertModel", "--size", "reduced", "--batch-sizes", "1,4,8"),
        *("--max-length", "32", "--max-seconds", "6", "--trace", "--output", str(output)),
    )
    files = set(figures["files"])
    return {
        "wall_seconds": round(wall, 1),
        "limit_seconds": 120,
        "files": len(files),
        "within": wall <= 120 and {"report.html", "profiler_traces/trace.json"} <= files,
    }


def profile_bench(name: str, output: Path) -> dict[str, Any]:
    """One function of `profile_bench`, in a separate process."""
    del output
    command = [sys.executable, "-m", "scripts.profile_bench", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def monitor_500(output: Path) -> dict[str, Any]:
    """The monitor's view of 500 stored runs of 200 results: each tab under 1 s, first call too."""
    store = Store(output / "monitor")
    results = [factories.result(f"Model{number}") for number in range(200)]
    for _ in range(500):
        profile = factories.run("", state="running", planned=len(results), wall_seconds=None)
        with store.create_run(profile, Plan(requests=(), skipped=(), digest="plan")) as writer:
            writer.append(results)
            writer.finish("finished")
    monitor = Monitor(store.root)
    walls = []
    for _ in range(5):
        started = time.monotonic()
        entries = monitor.entries()
        walls.append(time.monotonic() - started)
        started = time.monotonic()
        monitor.counted(entries[0])
        monitor.artifacts(entries[0])
        walls.append(time.monotonic() - started)
    return {
        "wall_seconds_most": round(max(walls), 3),
        "limit_seconds": 1,
        "runs": len(entries),
        "within": max(walls) <= 1,
    }


def minimal_reproducers(output: Path) -> dict[str, Any]:
    """A sample of the graph breaks of the library, or of the stored run that RUN names."""
    named = os.environ.get("RUN")
    if named is None:
        library(output, "eval", 25)
    run = Path(named) if named is not None else Store(output).open().path
    return measure(run, sample=50, seed=1, save=None)


BENCHMARKS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "help_latency": help_latency,
    "deepseek_v3": deepseek_v3,
    "deepseek_v3_cuda": deepseek_v3_cuda,
    "library_eval": library_eval,
    "library_rerun": library_rerun,
    "library_eval_train": library_eval_train,
    "library_devices": library_devices,
    "export_100": export_100,
    "inductor_10": inductor_10,
    "xla_25": xla_25,
    "pipeline": pipeline,
    "ray_100": ray_100,
    "publish_scale": publish_scale,
    "overview_queries": overview_queries,
    "loki_10k": loki_10k,
    "executor_kills": executor_kills,
    "executor_health": executor_health,
    "sandbox_cost": sandbox_cost,
    "gate_false_alarms": gate_false_alarms,
    "gate_cost": gate_cost,
    "gate_session": gate_session,
    "gate_start": gate_start,
    "minimal_reproducers": minimal_reproducers,
    "profile": profile,
    "monitor_500": monitor_500,
    "profile_timer": partial(profile_bench, "timer"),
    "profile_itself": partial(profile_bench, "itself"),
    "profile_traced": partial(profile_bench, "traced"),
    "profile_option": partial(profile_bench, "option"),
    "profile_waits": partial(profile_bench, "waits"),
}


def main() -> int:
    names = sys.argv[1:] or list(BENCHMARKS)
    unknown = set(names) - set(BENCHMARKS)
    if unknown:
        print(f"bench: no benchmark {', '.join(sorted(unknown))}; known: {', '.join(BENCHMARKS)}")
        return 2
    within = True
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            figures = BENCHMARKS[name](Path(folder))
            within = within and figures["within"]
            print(json.dumps({"benchmark": name, "cores": os.cpu_count(), **figures}), flush=True)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
