"""A run in which everything occurs that a sink may meet, hostile text included."""

from pathlib import Path
from typing import Any

from compilewatch import records
from compilewatch.config import Settings
from compilewatch.contract.targets import default_environment
from compilewatch.records import ChangeKind, Phase, RecompilationKind, Result, Status, Target
from compilewatch.sinks.run_files import HtmlSink
from compilewatch.store import RunFolder
from tests import factories

HOSTILE = "<script>alert(1)</script> & \"quoted\" 'single' \x00\x1b[31mred\x1b[0m [bold]"
"""Markup, characters that XML forbids, a terminal escape, rich markup."""

LONG = "torch._dynamo.config.capture_dynamic_output_shape_ops" * 3
"""A word that is wider than a phone."""

FORWARD = "transformers/models/bert/modeling_bert.py"


def frame(file: str, line: int, function: str, text: str) -> records.StackFrame:
    return records.StackFrame(file=file, line=line, function=function, text=text)


BRANCH = factories.graph_break(
    "BertEncoder.forward",
    line=412,
    occurrences=6,
    explanation="Detected data-dependent branching.",
    hints=("Use `torch.cond` to express dynamic control flow.", f"Set {LONG}."),
    user_stack=(
        frame(FORWARD, 900, "BertModel.forward", "encoder_outputs = self.encoder(x, mask)"),
        frame(FORWARD, 412, "BertEncoder.forward", "if mask.sum() > 0:"),
    ),
)
CODE = ("", "        height = torch_int(size)", f"    if size > 1:  # {HOSTILE}", LONG, "x = 1")
UNBACKED = factories.graph_break(
    "torch_int",
    gb_id=None,
    reason=f"Could not guard on u0 > 1 {HOSTILE}",
    line=77,
    source_start=75,
    source=CODE,
    user_stack=tuple(frame("torch/nn/modules/module.py", n, "forward", "f()") for n in range(1, 7)),
)
BRANCH_BEFORE = factories.graph_break(
    "BertEncoder.forward", line=400, source_start=399, source=("x = 1", "if x.mean() > 0:")
)
REFUSED = records.FullgraphVerdict(accepted=False, code="GB0170", reason=BRANCH.reason)


def export_details() -> records.ExportDetail:
    failure = records.DraftFailure(kind="guard_added", what="u0 > 1", file="m.py", line=9)
    reason = f"no branch {HOSTILE}"
    return records.ExportDetail(
        non_strict=records.ExportVariant(exported=True, duration_seconds=1.25, ops=321),
        strict=records.ExportVariant(
            exported=False, duration_seconds=0.5, code="GB0170", reason=reason
        ),
        draft=records.DraftExport(exported=True, failures=(failure,)),
        dynamic_dimensions=("input_ids[0]",),
    )


def xla_details() -> records.XlaDetail:
    source = "https://awsdocs-neuron.readthedocs-hosted.com/en/latest/x.html"
    concern = records.NeuronConcern(
        operator="sort", count=2, reason="not lowered", source=source, sdk="2.32.0"
    )
    return records.XlaDetail(
        operators={"dot": 12, "sort": 2},
        fallbacks={"aten::nonzero": 3},
        hlo="export",
        compile_seconds=3.5,
        recompiles_same_inputs=0,
        recompiles=1,
        expected_to_fail_on_neuron=(concern,),
    )


def neuron_details() -> records.NeuronDetail:
    sort = records.NeuronOperator(
        name="aten.sort.default", occurrences=2, stage="torch", file="pkg/model.py", line=7
    )
    return records.NeuronDetail(
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
        operators=(sort,),
        fallback_operators={"aten::normal_": 1},
    )


def forecasts() -> tuple[Result, ...]:
    """One that lowers, one that does not, and one that crashed and says nothing of its model."""
    declared = records.DeclaredDevice(
        kind="neuron", name="trn2", product="AWS Trainium2", memory_bytes=24 * 2**30, bfloat16=True
    )
    source = "https://github.com/aws-neuron/torch-neuronx/blob/main/decompositions.py"
    histc, topk = (
        records.NeuronOperator(
            name=f"aten.{name}.default",
            occurrences=2,
            stage="torch",
            types="(tensor<64xf32>) -> tensor<8xf32>",
            file="transformers/integrations/moe.py",
            line=449,
            handled_by=handled_by,
        )
        for name, handled_by in (("histc", ""), ("topk", source))
    )
    lowered = records.NeuronGraph(
        direction="inference",
        nodes=181,
        seconds={"passes": 0.25, "lower": 0.4},
        stablehlo_bytes=9_300,
    )
    failed = records.NeuronGraph(
        direction="inference", nodes=330, seconds={"passes": 0.3}, failed_stage="lower"
    )
    detail: dict[str, Any] = {
        "target": "trn2",
        "route": "lowering",
        "lowering_version": "20261001",
        "operators": (histc, topk),
        "graphs": (lowered, failed),
        "failed_stage": "lower",
    }
    fail, lowers = (
        records.NeuronDetail(**detail),
        records.NeuronDetail(target="trn2", route="lowering", graphs=(lowered,)),
    )

    def on(name: str, status: Status, **fields: Any) -> Result:
        target = Target(name="neuron", environment="lowering")
        return factories.result(
            name, status, target=target, device=declared, family="row", downloads=7_000, **fields
        )

    said = "aten.histc.default has no lowering"
    return (
        on("RowModel", Status.FORECAST_FAIL, details=fail, detail=said),
        on("CompiledModel", Status.FORECAST_PASS, details=lowers, phase=Phase.DONE),
        on("CrashModel", Status.CRASHED, detail="signal 11 (SIGSEGV)"),
    )


def numerics(max_abs_error: float) -> records.Numerics:
    matches = not max_abs_error
    return records.Numerics(
        deterministic=True, matches=matches, max_abs_error=max_abs_error, atol=1e-5
    )


def row() -> tuple[Result, ...]:
    """One model on every target, with all that each can tell."""
    performance = records.Performance(
        cold_compile_seconds=21.5,
        warm_compile_seconds=4.2,
        eager_latency_seconds=0.008,
        compiled_latency_seconds=0.004,
        latency_samples=30,
        speedup=2.0,
        recompiles=0,
        compiler_peak_memory_bytes=400 * 2**20,
    )
    compiled = records.NeuronDetail(
        target="trn1",
        route="torch_neuronx.trace",
        compiled=True,
        compile_seconds=61.0,
        neff_bytes=25 * 2**20,
    )

    def on(
        name: str, status: Status = Status.PASS, model: str = "RowModel", **fields: Any
    ) -> Result:
        target = Target(name=name, environment=default_environment(name))
        given = {"family": "row", "fullgraph": None, "tier": records.Tier.REAL, "downloads": 7_000}
        return factories.result(model, status, target=target, **{**given, **fields})

    fallback = factories.graph_break("lowered", gb_id=None, code="xla_fallback")
    failed: dict[str, Any] = {"error": factories.error("NCC_EVRF009"), "details": neuron_details()}
    unlike: dict[str, Any] = {"tier": records.Tier.FAKE, "downloads": None, "details": compiled}
    return (
        on("dynamo", breaks=(BRANCH,), fullgraph=REFUSED),
        on("export", ops=321, details=export_details()),
        on("inductor", numerics=numerics(0.0), details=performance),
        on("xla", breaks=(fallback,), details=xla_details()),
        on("neuron", Status.ERROR, **failed),
        on("neuron", model="CompiledModel", **unlike),
        *forecasts(),
    )


SIZE_BRANCH = records.StackFrame(
    file=FORWARD,
    line=640,
    function="forward",
    text="if seq_length > 8:",
)
AGAIN = tuple(
    records.Recompilation(
        **{name: getattr(SIZE_BRANCH, name) for name in ("file", "line", "function")},
        call=call,
        guards=(guard,),
        kind=kind,
        subject="input_ids.1",
        needed_by=needed_by,
    )
    for call, guard, kind, needed_by in (
        (1, "0/0: 2 <= input_ids.size()[1] <= 8", RecompilationKind.BRANCH, SIZE_BRANCH),
        (2, "0/1: 2 <= input_ids.size()[1]", RecompilationKind.SIZE_0_OR_1, None),
        (2, "0/1: 9 <= input_ids.size()[1]", RecompilationKind.BRANCH, SIZE_BRANCH),
    )
)


def bert() -> Result:
    """Everything that a result can have."""
    capture = records.CaptureFigures(
        operators_captured=1190,
        operators_eager=10,
        frames_compiled=8,
        frames_skipped=1,
        eager_operators={"aten.item.default": 6, "aten.sum.default": 4},
        nested_graph_breaks=False,
    )
    folder = "artifacts/BertModel/dynamo"
    return factories.result(
        "BertModel",
        breaks=(BRANCH, UNBACKED),
        family="bert",
        task="text",
        downloads=382_093_426,
        graphs=8,
        capture=capture,
        recompilations=AGAIN,
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
        artifacts=(f"{folder}/tlparse.zip", f"{folder}/torch_trace/trace.log.zst"),
    )


def vit() -> Result:
    """One of another run, evaluated a second time."""
    attempt = records.Attempt(
        tier=records.Tier.FAKE,
        status=Status.ERROR,
        phase=Phase.CREATE,
        code=records.AttemptCode.FAKE_UNSUPPORTED,
        reason="it reads a value",
        durations={"create": 0.25},
    )
    return factories.result(
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
        shapes=records.Shapes(problem="the inputs have no batch"),
        artifacts=("artifacts/vit/torch_trace/trace.log.zst",),
        attempts=(attempt,),
    )


def results() -> tuple[Result, ...]:
    error = factories.error(
        "type_error",
        "builtins.TypeError",
        message=f"it failed {HOSTILE}",
        head="Traceback (most recent call last):\n  first frames",
        tail=f"  last frames\nTypeError: it failed {HOSTILE}",
        file=FORWARD,
        line=100,
        function="forward",
    )
    odd: dict[str, Any] = {
        "family": "custom",
        "source": "manifest",
        "detail": f"it failed {HOSTILE}",
    }
    expected = "needs timm, which pulls another torch"
    train, dynamic = Target(mode=records.Mode.TRAIN), Target(dynamic=True)
    drift = {"phase": Phase.COMPARE, "numerics": numerics(0.25)}

    def gpt(name: str, status: Status, **fields: Any) -> Result:
        return factories.result(name, status, **{"family": "gpt", **fields})

    return (
        bert(),
        factories.result("BertModel", target=train, breaks=(BRANCH,), family="bert"),
        vit(),
        factories.result("team/odd name [x] ü", Status.ERROR, error=error, **odd),
        gpt("GptModel", Status.ERROR, phase=Phase.CREATE),
        gpt("TimmModel", Status.ERROR, family="timm", phase=Phase.CREATE, expectation=expected),
        gpt("DriftModel", Status.MISMATCH, **drift),
        gpt("SlowModel", Status.TIMEOUT, detail="no end within 600 s"),
        gpt("BigModel", Status.OOM, detail="over 8.0 GiB"),
        gpt("CrashModel", Status.CRASHED, detail="signal 11 (SIGSEGV)"),
        gpt("meta/gated", Status.SKIPPED, family="llama", detail="gated: accept its licence"),
        gpt("OddModel", Status.UNSUPPORTED, family="llama", detail="needs a package: timm"),
        factories.result("Model/a", family="twins", shapes=factories.shapes(6, 3, lines=(8, 8, 9))),
        factories.result(
            "model--A", family="twins", target=dynamic, shapes=factories.shapes(9, 9, limit=True)
        ),
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
        _change(ChangeKind.MORE_COMPILATIONS, "Model/a", Status.PASS, Status.PASS),
        _change(ChangeKind.NEW, "DriftModel", None, Status.MISMATCH),
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
        before={
            ("BertModel", Target()): factories.result(breaks=(BRANCH_BEFORE,)),
            ("Model/a", Target()): factories.result("Model/a", shapes=factories.shapes(5, 3)),
        },
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
