"""A run of any size in which every answer holds all that its target measures: the most there is.

For load tests and benchmarks; how the answers are spread (families, reasons, downloads) follows
what a sweep of the whole library gave on 2026-11-21: about 2.5 classes a family, and a break in
every second class.
"""

from collections.abc import Iterator
from typing import Any

from compilewatch.contract.targets import default_environment
from compilewatch.records import (
    CaptureFigures,
    FullgraphVerdict,
    GraphBreak,
    Mode,
    NeuronDetail,
    Performance,
    Result,
    RunView,
    Status,
    Target,
    XlaDetail,
)
from tests import factories

TARGETS = ("dynamo", "dynamo:aot_eager", "export", "inductor", "xla", "neuron")
REASONS = 40
DURATIONS = {"setup": 0.1, "create": 0.5, "inputs": 0.1, "eager": 0.4, "compile": 2.0, "done": 0.1}


def run(models: int, *, modes: tuple[Mode, ...] = tuple(Mode), **fields: Any) -> RunView:
    """`models` on six targets in these modes; fields are of the run or the view."""
    answers = tuple(_answers(models, modes))
    return factories.view(*answers, **{"baseline": factories.run("20260101-0-0"), **fields})


def _answers(models: int, modes: tuple[Mode, ...]) -> Iterator[Result]:
    for index in range(models):
        for label in TARGETS:
            for mode in modes:
                yield _answer(index, label, mode)


def _answer(index: int, label: str, mode: Mode) -> Result:
    name, _, backend = label.partition(":")
    breaks: tuple[GraphBreak, ...] = ()
    if name in ("dynamo", "xla") and index % 2:
        breaks = (factories.graph_break(f"f{index}", gb_id=f"GB{index % REASONS:04}"),)
    of_targets: dict[str, dict[str, Any]] = {
        "dynamo": {
            "guards": 30,
            "fullgraph": FullgraphVerdict(accepted=not breaks),
            "capture": CaptureFigures(operators_captured=900, operators_eager=len(breaks)),
        },
        "export": {},
        "inductor": {
            "details": Performance(
                cold_compile_seconds=20.0 + index % 7,
                warm_compile_seconds=4.0,
                speedup=1.0 + index % 10 / 10,
                recompiles=1,
            ),
        },
        "xla": {"details": XlaDetail(compile_seconds=3.0, recompiles=1)},
        "neuron": {
            "ops": None,
            "details": NeuronDetail(
                target="trn1", route="neuronx-cc", compile_seconds=60.0, neff_bytes=2**25
            ),
        },
    }
    details = of_targets[name]
    target = Target(
        name=name, backend=backend or None, mode=mode, environment=default_environment(name)
    )
    failed = index % 50 == 49
    return factories.result(
        f"organisation-{index % 97}/model-{index:05}",
        Status.ERROR if failed else Status.PASS,
        () if failed else breaks,
        target=target,
        family=f"family-{index * 2 // 5:04}",
        task="text",
        revision=f"{index:040x}",
        source="hub",
        downloads=(index * 7919) % 1_000_000,
        **{
            "graphs": 1 + len(breaks),
            "ops": 400 + index,
            "peak_memory_bytes": 2**30 + index,
            "unattributed": 0,
            "durations": DURATIONS,
            "fullgraph": None,
            **details,
        },
    )
