"""A run in which everything occurs that a sink may meet, hostile text included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compilewatch import records
from compilewatch.config import Settings
from compilewatch.contract.targets import default_environment
from compilewatch.records import ChangeKind, Phase, Result, Status, Target
from compilewatch.sinks.run_files import HtmlSink
from compilewatch.store import RunFolder
from tests import factories

HOSTILE = "<script>alert(1)</script> & \"quoted\" 'single' \x00\x1b[31mred\x1b[0m [bold]"
"""Markup, characters that XML forbids, a terminal escape, rich markup."""

LONG = "torch._dynamo.config.capture_dynamic_output_shape_ops" * 3
"""A word that is wider than a phone."""

BRANCH = factories.graph_break(
    "BertEncoder.forward",
    line=412,
    occurrences=6,
    explanation="Detected data-dependent branching.",
    hints=("Use `torch.cond` to express dynamic control flow.", f"Set {LONG}."),
    user_stack=(
        records.StackFrame(
            file="transformers/models/bert/modeling_bert.py",
            line=900,
            function="BertModel.forward",
            text="encoder_outputs = self.encoder(embedding_output, attention_mask)",
        ),
        records.StackFrame(
            file="transformers/models/bert/modeling_bert.py",
            line=412,
            function="BertEncoder.forward",
            text="if mask.sum() > 0:",
        ),
    ),
)
UNBACKED = factories.graph_break(
    "torch_int",
    gb_id=None,
    reason=f"Could not guard on u0 > 1 {HOSTILE}",
    line=77,
    source_start=75,
    source=(
        "",
        "        height = torch_int(size)",
        f"    if size > 1:  # {HOSTILE}",
        LONG,
        "x = 1",
    ),
    user_stack=tuple(
        records.StackFrame(
            file="torch/nn/modules/module.py", line=number, function="forward", text="f()"
        )
        for number in range(1, 7)
    ),
)
BRANCH_BEFORE = factories.graph_break(
    "BertEncoder.forward", line=400, source_start=399, source=("x = 1", "if x.mean() > 0:")
)
REFUSED = records.FullgraphVerdict(accepted=False, code="GB0170", reason=BRANCH.reason)


def row() -> tuple[Result, ...]:
    """One model on every target, with all that each can tell."""
    source = "https://awsdocs-neuron.readthedocs-hosted.com/en/latest/x.html"
    non_strict = records.ExportVariant(exported=True, duration_seconds=1.25, ops=321)
    strict = records.ExportVariant(
        exported=False, duration_seconds=0.5, code="GB0170", reason=f"no branch {HOSTILE}"
    )
    refused = records.ExportVariant(
        exported=False, duration_seconds=0.5, code="fallback", reason="no"
    )

    def on(name: str, status: Status = Status.PASS, **fields: Any) -> Result:
        target = Target(name=name, environment=default_environment(name))
        given = {"family": "row", "fullgraph": None, "tier": records.Tier.REAL, "downloads": 7_000}
        return factories.result("RowModel", status, target=target, **{**given, **fields})

    return (
        on("dynamo", breaks=(BRANCH,), fullgraph=REFUSED),
        on(
            "export",
            ops=321,
            details=records.ExportDetail(
                non_strict=non_strict,
                strict=strict,
                draft=records.DraftExport(
                    exported=True,
                    failures=(
                        records.DraftFailure(
                            kind="guard_added", what="u0 > 1", file="m.py", line=9
                        ),
                    ),
                ),
                dynamic_dimensions=("input_ids[0]",),
            ),
        ),
        on(
            "inductor",
            numerics=records.Numerics(
                deterministic=True, matches=True, max_abs_error=0.0, atol=1e-5
            ),
            details=records.Performance(
                cold_compile_seconds=21.5,
                warm_compile_seconds=4.2,
                eager_latency_seconds=0.008,
                compiled_latency_seconds=0.004,
                latency_samples=30,
                speedup=2.0,
                recompiles=0,
                compiler_peak_memory_bytes=400 * 2**20,
            ),
        ),
        on(
            "xla",
            breaks=(factories.graph_break("lowered", gb_id=None, code="xla_fallback"),),
            details=records.XlaDetail(
                operators={"dot": 12, "sort": 2},
                fallbacks={"aten::nonzero": 3},
                hlo="export",
                stablehlo=refused,
                compile_seconds=3.5,
                recompiles_same_inputs=0,
                recompiles=1,
                openxla=records.OpenXla(
                    accepted=False,
                    graphs=2,
                    graph_breaks=1,
                    breaks=(BRANCH,),
                    code="GB0170",
                    fallbacks={"aten::item": 1},
                ),
                expected_to_fail_on_neuron=(
                    records.NeuronConcern(
                        operator="sort", count=2, reason="not lowered", source=source, sdk="2.32.0"
                    ),
                ),
            ),
        ),
        on(
            "neuron",
            Status.ERROR,
            error=factories.error("NCC_EVRF009"),
            details=records.NeuronDetail(
                target="trn1",
                route="neuronx-cc",
                flags=("--model-type", "transformer"),
                sdk_version="2.32.0",
                compiler_version="2.27.5334.0",
                compile_seconds=95.0,
                compiler_peak_memory_bytes=3 * 2**30,
                failure=records.NeuronFailure(
                    kind="device_memory",
                    code="NCC_EVRF009",
                    message=f"too large {HOSTILE}",
                    advice="Use a smaller batch.",
                    exit_status=70,
                ),
                support=records.NeuronSupport(
                    percent=92.3,
                    supported={"aten::mm": 12},
                    unsupported=(
                        records.NeuronOperator(
                            name="aten::sort", occurrences=2, failure_at="neuron_cc"
                        ),
                    ),
                ),
            ),
        ),
        factories.result(
            "CompiledModel",
            family="row",
            target=Target(name="neuron", environment="neuron"),
            fullgraph=None,
            details=records.NeuronDetail(
                target="trn1",
                route="torch_neuronx.trace",
                compiled=True,
                compile_seconds=61.0,
                neff_bytes=25 * 2**20,
            ),
        ),
    )


def results() -> tuple[Result, ...]:
    return (
        factories.result(
            "BertModel",
            breaks=(BRANCH, UNBACKED),
            family="bert",
            task="text",
            downloads=382_093_426,
            graphs=8,
            capture=records.CaptureFigures(
                operators_captured=1190,
                operators_eager=10,
                frames_compiled=8,
                frames_skipped=1,
                recompilations=2,
                eager_operators={"aten.item.default": 6, "aten.sum.default": 4},
                nested_graph_breaks=False,
            ),
            ops=512,
            guards=40,
            unattributed=0,
            graph_ops=(1, 210, 0, 40, 200, 3, 50, 8),
            graph_ends=(0, 0, 1, 0, 0, 0, 0, -1),
            parameters=110_000_000,
            peak_memory_bytes=700 * 2**20,
            fullgraph=REFUSED,
            inputs=(
                records.TensorSummary(name="input_ids", shape=(2, 16), dtype="int64"),
                records.TensorSummary(name="use_cache", value="False"),
            ),
            inputs_strategy="text",
            detail=LONG,
            artifacts=(
                "artifacts/BertModel/dynamo/tlparse.zip",
                "artifacts/BertModel/dynamo/torch_trace/trace.log.zst",
            ),
        ),
        factories.result(
            "BertModel", target=Target(mode=records.Mode.TRAIN), breaks=(BRANCH,), family="bert"
        ),
        factories.result(
            "google/vit-base",
            family="vit",
            task="vision",
            source="hub",
            revision="0123456789abcdef0123456789abcdef01234567",
            downloads=222_795_161,
            license="apache-2.0",
            tier=records.Tier.REAL,
            depth=records.Depth.REDUCED,
            graphs=1,
            unattributed=0,
            fullgraph=records.FullgraphVerdict(accepted=True, derived=True),
            reused_from="20260101-030405-0001",
            artifacts=("artifacts/vit/torch_trace/trace.log.zst",),
            attempts=(
                records.Attempt(
                    tier=records.Tier.FAKE,
                    status=Status.ERROR,
                    phase=Phase.CREATE,
                    code=records.AttemptCode.FAKE_UNSUPPORTED,
                    reason="it reads a value",
                    durations={"create": 0.25},
                ),
            ),
        ),
        factories.result(
            "team/odd name [x] ü",
            Status.ERROR,
            family="custom",
            source="manifest",
            detail=f"it failed {HOSTILE}",
            error=records.ErrorRecord(
                type="builtins.TypeError",
                message=f"it failed {HOSTILE}",
                code="type_error",
                head="Traceback (most recent call last):\n  first frames",
                tail=f"  last frames\nTypeError: it failed {HOSTILE}",
                file="transformers/models/bert/modeling_bert.py",
                line=100,
                function="forward",
            ),
        ),
        factories.result("GptModel", Status.ERROR, family="gpt", phase=Phase.CREATE),
        factories.result(
            "TimmModel",
            Status.ERROR,
            family="timm",
            phase=Phase.CREATE,
            expectation="needs timm, which pulls another torch",
        ),
        factories.result(
            "DriftModel",
            Status.MISMATCH,
            family="gpt",
            phase=Phase.COMPARE,
            numerics=records.Numerics(
                deterministic=True, matches=False, max_abs_error=0.25, atol=1e-5
            ),
        ),
        factories.result("SlowModel", Status.TIMEOUT, family="gpt", detail="no end within 600 s"),
        factories.result("BigModel", Status.OOM, family="gpt", detail="over 8.0 GiB"),
        factories.result("CrashModel", Status.CRASHED, family="gpt", detail="signal 11 (SIGSEGV)"),
        factories.result(
            "meta/gated", Status.SKIPPED, family="llama", detail="gated: accept its licence"
        ),
        factories.result(
            "OddModel", Status.UNSUPPORTED, family="llama", detail="needs a package: timm"
        ),
        factories.result("Model/a", family="twins"),
        factories.result("model--A", family="twins", target=Target(dynamic=True)),
    )


def _change(
    kind: ChangeKind, model: str, before: Status | None, after: Status | None
) -> records.Change:
    return records.Change(
        kind=kind,
        model=model,
        target=Target(),
        before=before,
        after=after,
        reason=f"{before} -> {after}",
        family="bert",
        downloads=5,
        causes=("torch 2.12.0 -> 2.13.0", "revision aaaa -> bbbb"),
    )


def view(*more: Result) -> records.RunView:
    changes = (
        _change(ChangeKind.REGRESSION, "BertModel", Status.PASS, Status.GRAPH_BREAK),
        _change(ChangeKind.FIXED, "google/vit-base", Status.GRAPH_BREAK, Status.PASS),
        _change(ChangeKind.NEW, "Model/a", None, Status.PASS),
        _change(ChangeKind.GONE, "GoneModel", Status.PASS, None),
        _change(ChangeKind.NEWLY_TESTED, "model--A", Status.SKIPPED, Status.PASS),
        _change(ChangeKind.NO_LONGER_TESTED, "SlowModel", Status.PASS, Status.TIMEOUT),
    )
    shown = (*results(), *more)
    runs = [f"2026010{day}-030405-0001" for day in range(1, 4)]
    return factories.view(
        *shown,
        planned=len(shown) + 3,
        history={
            ("BertModel", "dynamo"): (
                records.Earlier(runs[0], Status.PASS, Phase.DONE),
                records.Earlier(runs[1], Status.GRAPH_BREAK, Phase.DONE),
                records.Earlier(runs[2], Status.TIMEOUT, Phase.COMPILE),
            )
        },
        trend=[records.TrendPoint(run, n, 20) for run, n in zip(runs, (20, 11, 3), strict=True)],
        before={("BertModel", Target()): factories.result(breaks=(BRANCH_BEFORE,))},
        jobs=2,
        changes=changes,
        baseline=factories.run("20260101-030405-0001"),
        differences=("torch 2.12.0 -> 2.13.0",),
        notes=(f"1 damaged line was skipped {HOSTILE}", LONG),
    )


def write_report(shown: records.RunView, folder: Path) -> Path:
    """The report as it stands in a run's folder, its artifacts beside it; the report's folder."""

    files = RunFolder(folder)
    for result in shown.results:
        for artifact in result.artifacts:
            files.write(artifact, b"<!doctype html><title>trace</title>")
    HtmlSink(Settings()).publish(shown, files)
    return folder / "report"
