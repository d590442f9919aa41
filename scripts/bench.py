"""Measures what docs/benchmarks.md states; prints one JSON line a benchmark.

    make bench                     # all, about three hours on two cores
    make bench ARGS="deepseek_v3"  # some, by name

Every figure is of complete commands, as a user runs them, in a fresh outputs folder.
"""

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

from compilewatch.extras.executor import sandbox
from compilewatch.extras.executor.protocol import JobRequest
from compilewatch.extras.executor.sandbox.policy import SandboxLimits, SandboxResult
from compilewatch.extras.monitor.view import Monitor
from compilewatch.records import Plan
from compilewatch.sinks.loki import LokiSink
from compilewatch.sinks.pushgateway import PushgatewaySink
from compilewatch.store import RunFolder, Store
from scripts.timing import Figures, cpu_of_children, in_turns, limited, seconds_of
from tests import factories, recorded, services
from tests.doubles.loki import loki
from tests.integration.extras.executor.conftest import Executor
from tests.run_folder import VIEW, line, stamp, with_log

PROGRAM = Path(sys.executable).with_name("compilewatch")
JOBS = "2"
REDUCED_LIBRARY = (
    *("sweep", "--source", "library", "--all", "--depth", "reduced", "--variants", "main"),
    *("--jobs", JOBS),
)
MOST_USED = ("sweep", "--source", "library", "--top")
DEEPSEEK = ("explain", "DeepseekV3ForCausalLM", "--depth", "full")


def run(*command: str | Path, **environment: str) -> tuple[float, str]:
    """Wall seconds of a command, and what it printed."""
    started = time.monotonic()
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        env={**os.environ, **environment},
    )
    return time.monotonic() - started, done.stdout


def compilewatch(*arguments: str | Path) -> tuple[float, dict[str, Any]]:
    """Wall seconds of one command, and what it printed with --json."""
    wall, printed = run(PROGRAM, *arguments, "--json")
    return wall, json.loads(printed)


def swept(minutes: float, *arguments: str | Path) -> Figures:
    """A sweep, with a limit of so many minutes."""
    wall, sweep = compilewatch(*arguments)
    summary = sweep["summary"]
    figures = {
        "wall_seconds": round(wall, 1),
        "requests": summary["planned"],
        "verdicts": summary["verdicts"],
        "coverage": round(summary["verdicts"] / summary["planned"], 4),
        "reused": summary["reused"],
        "overhead": summary["overhead"] and round(summary["overhead"], 3),
        "statuses": summary["statuses"],
    }
    return limited(figures, wall_seconds=minutes * 60)


def library_eval(output: Path) -> Figures:
    """Base, CausalLM and ConditionalGeneration classes, eval: 25 minutes, overhead 1.15."""
    figures = swept(25, *REDUCED_LIBRARY, "--modes", "eval", "--output", output, "--fresh")
    return limited(figures, **figures["limits"], overhead=1.15)


def library_rerun(output: Path) -> Figures:
    """The same again with nothing changed: 5 seconds. Needs library_eval before it."""
    return swept(5 / 60, *REDUCED_LIBRARY, "--modes", "eval", "--output", output)


def library_eval_train(output: Path) -> Figures:
    """Eval and train: 60 minutes."""
    return swept(60, *REDUCED_LIBRARY, "--modes", "eval,train", "--output", output, "--fresh")


def library_devices(output: Path) -> Figures:
    """Eval on a declared CUDA device and on the CPU, in interleaved eighths: at most 1.15 times."""
    seconds = {"cpu": 0.0, "cuda": 0.0}
    verdicts = {"cpu": 0, "cuda": 0}
    for part in range(1, 9):
        for device in sorted(seconds, reverse=part % 2 == 0):
            where = ("--device", device, "--shard", f"{part}/8", "--output", output, "--fresh")
            wall, sweep = compilewatch(*REDUCED_LIBRARY, *where)
            seconds[device] += wall
            verdicts[device] += sweep["summary"]["verdicts"]
    walls = {device: round(wall, 1) for device, wall in seconds.items()}
    ratio = round(seconds["cuda"] / seconds["cpu"], 3)
    return limited({"wall_seconds": walls, "verdicts": verdicts, "ratio": ratio}, ratio=1.15)


def of_target(target: str, top: int, depth: str, minutes: float, output: Path) -> Figures:
    """One target over the most used architectures: so many minutes, 95 % verdicts."""
    models = (*MOST_USED, str(top), "--targets", target, "--depth", depth)
    figures = swept(minutes, *models, "--jobs", JOBS, "--output", output, "--fresh")
    return figures | {"within": figures["within"] and figures["coverage"] >= 0.95}


def ray_100(output: Path) -> Figures:
    """The 100 most used architectures, one after the other: locally and on Ray, on this machine.

    15 % slower, the start of a cluster included. RAY_MODELS selects fewer models.
    """
    models = os.environ.get("RAY_MODELS", "100")
    walls: dict[str, float] = {}
    statuses: dict[str, Any] = {}
    for launcher in ("local", "ray"):
        walls[launcher], sweep = compilewatch(
            *(*MOST_USED, models, "--depth", "reduced", "--fresh"),
            *("--launcher", launcher, "--jobs", JOBS, "--output", output / launcher),
        )
        statuses[launcher] = sweep["summary"]["statuses"]
    figures = {
        "models": int(models),
        "wall_seconds": {launcher: round(wall, 1) for launcher, wall in walls.items()},
        "slower": round(walls["ray"] / walls["local"] - 1, 3),
        "within": statuses["local"] == statuses["ray"],
    }
    return limited(figures, slower=0.15)


def deepseek_v3(_: Path) -> Figures:
    """DeepSeek-V3's published configuration (671 B parameters) at full depth: 60 s, 1 GiB."""
    wall, result = compilewatch(*DEEPSEEK)
    names = ("peak_memory_bytes", "parameters", "status")
    figures = {"wall_seconds": round(wall, 1), **{name: result[name] for name in names}}
    return limited(figures, wall_seconds=60, peak_memory_bytes=2**30)


def deepseek_v3_cuda(_: Path) -> Figures:
    """The same for a CUDA device that is only declared, in bfloat16: 30 s of CPU time, 0.7 GiB."""
    before = cpu_of_children()
    result = compilewatch(*DEEPSEEK, "--device", "cuda", "--dtype", "bfloat16")[1]
    names = ("peak_memory_bytes", "parameters", "dtype", "status")
    spent = round(cpu_of_children() - before, 1)
    figures = {"cpu_seconds": spent, **{name: result[name] for name in names}}
    return limited(figures, cpu_seconds=30, peak_memory_bytes=int(0.7 * 2**30))


def help_latency(_: Path) -> Figures:
    """`compilewatch --help`, median of nine: 0.3 s."""
    walls = [run(PROGRAM, "--help")[0] for _ in range(9)]
    return limited({"wall_seconds": round(median(walls), 3)}, wall_seconds=0.3)


def pipeline(output: Path) -> Figures:
    """`make pipeline` on the default list in two shards, environment ready: 5 minutes."""
    folders = {"PIPELINE_DIR": str(output / "build")}
    folders["COMPILEWATCH_OUTPUT_DIR"] = str(output / "outputs")
    wall, _ = run("make", "pipeline", **folders, SOURCE="library", FRESH="true")
    files = (output / "build" / "archive" / "SHA256SUMS").read_text().splitlines()
    figures = {"wall_seconds": round(wall, 1), "archived_files": len(files)}
    return limited(figures, wall_seconds=300)


def publish_scale(output: Path) -> Figures:
    """1,000 models x 6 targets x 2 modes to a real Pushgateway: 5 s, 100,000 series."""
    view = recorded.run(1000)
    with services.pushgateway(output) as gateway:
        sink = PushgatewaySink(factories.settings(pushgateway_url=gateway.url))
        publish = partial(sink.publish, view, RunFolder(output))
        walls = [seconds_of(publish) for _ in range(5)]  # the first fills it, others replace
        lines = gateway.get("/metrics").splitlines()
    figures = {
        "wall_seconds": round(median(walls), 2),
        "wall_seconds_most": round(max(walls), 2),
        "results": len(view.results),
        "series": sum(b'job="compilewatch"' in line for line in lines),
    }
    return limited(figures, wall_seconds_most=5, series=100_000)


def loki_10k(output: Path) -> Figures:
    """10,000 log lines of a stored run to a mock of Loki's push API: 10 s, none lost."""
    lines = [line(stamp(nanoseconds=n), f"org/model-{n}", detail="x" * 500) for n in range(10_000)]
    folder = with_log(output / "loki", lines)
    with loki() as server:
        sink = LokiSink(factories.settings(loki_url=server.url))
        wall = seconds_of(partial(sink.publish, VIEW, folder))
        lost = len(set(lines) - {held.encode() for held in server.lines()})
    return limited({"wall_seconds": round(wall, 2), "lost": lost}, wall_seconds=10, lost=0)


def profile(output: Path) -> Figures:
    """What `make profile` runs, after its set-up: 2 minutes."""
    wall, figures = compilewatch(
        *("profile", "infer", "BertModel", "--size", "reduced", "--batch-sizes", "1,4,8"),
        *("--max-length", "32", "--max-seconds", "6", "--trace", "--output", output),
    )
    files = set(figures["files"])
    complete = {"report.html", "profiler_traces/trace.json"} <= files
    taken = {"wall_seconds": round(wall, 1), "files": len(files), "within": complete}
    return limited(taken, wall_seconds=120)


def profile_bench(name: str, _: Path) -> Figures:
    """One function of `profile_bench`, in a separate process."""
    printed = run(sys.executable, "-m", "scripts.profile_bench", name)[1]
    figures: Figures = json.loads(printed.splitlines()[-1])
    return figures


def monitor_500(output: Path) -> Figures:
    """The monitor's view of 500 stored runs of 200 results: each tab under 1 s, first call too."""
    store = Store(output / "monitor")
    results = [factories.result(f"Model{number}") for number in range(200)]
    for _ in range(500):
        opened = factories.run("", state="running", planned=len(results), wall_seconds=None)
        with store.create_run(opened, Plan(requests=(), skipped=(), digest="plan")) as writer:
            writer.append(results)
            writer.finish("finished")
    monitor = Monitor(store.root)

    def details() -> None:
        newest = monitor.entries()[0]
        monitor.results(newest)
        monitor.artifacts(newest)

    walls = [seconds_of(call) for _ in range(5) for call in (monitor.entries, details)]
    figures = {"wall_seconds_most": round(max(walls), 3), "runs": len(monitor.entries())}
    return limited(figures, wall_seconds_most=1)


def executor(folder: Path) -> Executor:
    """A service of two jobs at once, which runs."""
    folder.mkdir(parents=True)
    service = Executor(folder, "--jobs", JOBS)
    service.start()
    return service


HOSTILE = """
import os
for _ in range(60):
    if os.fork() == 0:
        break
while True:
    print("x" * 10000)
"""


def executor_health(output: Path) -> Figures:
    """`GET /health` while two hostile jobs use all that they may for six seconds: 1 s."""
    service = executor(output / "health")
    walls = []
    try:
        client = service.client()
        limits = SandboxLimits(deadline_seconds=6.0)
        for key in ("a", "b"):
            job = JobRequest(files={"main.py": HOSTILE}, title=key, limits=limits)
            client.submit(key, job)
        while not all(client.status(key).ended for key in ("a", "b")):
            walls.append(seconds_of(service.health) * 1000)
    finally:
        service.end()
    figures = {"calls": len(walls), "median_ms": round(median(walls), 1)}
    return limited(figures | {"slowest_ms": round(max(walls), 1)}, slowest_ms=1000)


def sandbox_cost(_: Path) -> Figures:
    """What a sandbox adds to `python -c pass`: median of 30, within a second."""
    sandbox.check()
    results: list[SandboxResult] = []
    spec = sandbox.planned(["python", "-I", "-S", "-c", "pass"])
    walls = [seconds_of(lambda: results.append(sandbox.run(spec))) for _ in range(30)]
    figures = {
        "median_ms": round(median(walls) * 1000),
        "fastest_ms": round(min(walls) * 1000),
        "inside_median_ms": round(median(one.duration_seconds for one in results) * 1000),
        "memory_guard": msgspec.to_builtins(results[0].memory_guard),
    }
    return limited(figures, median_ms=1000)


REPETITIONS = 50
TURNS = 7

FAMILIES = (
    *("albert", "bert", "bert-generation", "camembert", "cohere", "data2vec-text", "electra"),
    *("ernie", "gemma", "gemma2", "gpt_neox", "granite", "llama", "mistral", "mpnet", "olmo"),
    *("persimmon", "phi", "qwen2", "qwen3", "rembert", "roberta", "roformer", "stablelm"),
    "starcoder2",
)
"""Families of Transformers whose configurations have the fields of `SMALL`."""

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "embedding_size": 64,
    "vocab_size": 128,
    "pad_token_id": 0,
}

SESSION = """
import pytest
import torch
from transformers import AutoConfig, AutoModel

@pytest.mark.parametrize("family", {families!r})
def test_reduced(compile_check, family):
    layers = {{"num_hidden_layers": 2}} if family == "gemma2" else {{}}  # one of each kind
    model = AutoModel.from_config(AutoConfig.for_model(family, **{small!r} | layers)).eval()
    compile_check(model, torch.ones(2, 8, dtype=torch.long), own="transformers")
"""


def gate_false_alarms(output: Path) -> Figures:
    """Fifty repetitions of the suite of twenty models with its baseline: no failure."""
    import torch

    from tests.gating import SOURCE, baseline_of, checked, imported

    root = output / "gate"
    models = [model() for model in imported(root, SOURCE).MODELS]
    inputs = [(torch.ones(4, 16),)] * len(models)
    failures, started = 0, time.monotonic()
    with contextlib.redirect_stdout(io.StringIO()):  # some models print
        baseline = baseline_of(checked(root, models, inputs, ()))
        for _ in range(REPETITIONS):
            failures += sum(check.failed for check in checked(root, models, inputs, baseline))
    figures = {"checks": REPETITIONS * len(models), "failures": failures}
    wall = round(time.monotonic() - started, 1)
    return limited(figures | {"wall_seconds": wall}, failures=0)


def gate_cost(output: Path) -> Figures:
    """A check and `torch.compile(backend="eager")` with one call, interleaved, ten models: 1.5.

    CPU time, the least of seven turns of each, since other processes only add to it.
    """
    import torch

    from tests.gating import SOURCE, checked, imported

    root = output / "gate"
    suite = imported(root, SOURCE)
    ids = torch.ones(2, 8, dtype=torch.long)
    transformers = importlib.import_module("transformers")

    def reduced(family: str) -> Any:
        config = transformers.AutoConfig.for_model(family, **SMALL)
        return transformers.AutoModel.from_config(config).eval()

    cases: list[tuple[Any, Any]] = [
        (getattr(suite, name)(), torch.ones(4, 16))
        for name in ("Mlp", "Stacked", "Attention", "Conv", "Gated")
    ]
    cases += [(reduced(f), ids) for f in ("bert", "llama", "electra", "gpt_neox", "qwen3")]

    def plain(model: Any, x: Any) -> None:
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(model, backend="eager")(x)

    def check(model: Any, x: Any) -> None:
        checked(root, [model], [(x,)], ())

    least = {}
    for model, x in cases:
        calls = (partial(plain, model, x), partial(check, model, x))
        measures = [partial(seconds_of, call, time.process_time) for call in calls]
        least[type(model).__name__] = tuple(map(min, in_turns(measures, TURNS)))
    compiled, gate = (sum(times) for times in zip(*least.values(), strict=True))
    figures = {
        "torch_compile_seconds": round(compiled, 3),
        "check_seconds": round(gate, 3),
        "ratios": {name: round(b / a, 2) for name, (a, b) in least.items()},
        "ratio": round(gate / compiled, 3),
    }
    return limited(figures, ratio=1.5)


def gate_session(output: Path) -> Figures:
    """One session of pytest with 25 reduced models of Transformers: 60 seconds."""
    root = output / "gate-session"
    root.mkdir()
    (root / "test_reduced.py").write_text(SESSION.format(families=FAMILIES, small=SMALL))
    started, before = time.monotonic(), cpu_of_children()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--compilewatch-update"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    figures = {
        "models": len(FAMILIES),
        "wall_seconds": round(time.monotonic() - started, 1),
        "processor_seconds": round(cpu_of_children() - before, 1),
        "said": done.stdout.strip().splitlines()[-1],
        "within": done.returncode == 0,
    }
    return limited(figures, wall_seconds=60)


def gate_start(output: Path) -> Figures:
    """What the plug-in adds to the start of pytest, CPU time without its tests: 20 ms.

    A difference of two complete sessions would be lost in their own variation.
    """
    code = (
        "import time, pytest; start = time.process_time(); "
        "import compilewatch.extras.gate.plugin as plugin; "
        "plugin.pytest_addoption(pytest.Parser(_ispytest=True)); "
        "print(time.process_time() - start)"
    )
    command = [sys.executable, "-c", code]
    seconds = [
        float(subprocess.run(command, cwd=output, capture_output=True, check=True).stdout)
        for _ in range(TURNS)
    ]
    added = {"added_milliseconds": round(min(seconds) * 1000, 1)}
    return limited(added, added_milliseconds=20)


BENCHMARKS: dict[str, Callable[[Path], Figures]] = {
    function.__name__: function
    for function in (
        *(help_latency, deepseek_v3, deepseek_v3_cuda, library_eval, library_rerun),
        *(library_eval_train, library_devices, pipeline, ray_100, publish_scale),
        *(loki_10k, executor_health, sandbox_cost, gate_false_alarms, gate_cost),
        *(gate_session, gate_start, profile, monitor_500),
    )
} | {
    "export_100": partial(of_target, "export:non_strict", 100, "full", 8),
    "inductor_10": partial(of_target, "inductor", 10, "reduced", 10),
    "xla_25": partial(of_target, "xla", 25, "reduced", 10),
    **{
        f"profile_{name}": partial(profile_bench, name)
        for name in ("timer", "itself", "traced", "option", "waits")
    },
}


def main() -> int:
    names = sys.argv[1:] or list(BENCHMARKS)
    if unknown := set(names) - set(BENCHMARKS):
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
