"""The monitor page, and the script that Streamlit runs: `streamlit run …/page.py -- OUTPUTS`.

Streamlit's environment has neither compilewatch nor torch: `worker/process/bootstrap.py` loads the
package from its files, and then runs Streamlit in the same process.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, cast

from compilewatch.analysis import summary
from compilewatch.contract.targets import target_label
from compilewatch.errors import StoreError
from compilewatch.extras.monitor.view import Monitor, MonitorEntry
from compilewatch.extras.profiles import analysis, report, training
from compilewatch.extras.profiles.records import InferenceProfile, OperatorStat
from compilewatch.records import Result, Run, Status, reason_label, spent
from compilewatch.report.charts import MID_TONES
from compilewatch.report.wording import milliseconds, plural

REFRESH_SECONDS = 0.5
WATCH_SECONDS = 1.0

TABS = ("Overview", "Timing", "Memory", "Artifacts")

ROWS_SHOWN = 500
STEPS_SHOWN = 300
EXAMPLES = 5
LARGEST = 15
OPERATORS_SHOWN = 15
BREAKS_SHOWN = 20

SLOW_FACTOR = 3.0
SLOW_SECONDS = 1.0
"""The first step is left out of the chart if it takes this many times as long as every other one,
and at least so long."""

MEMORY = {
    "peak of the process, MB": "rss_peak_bytes",
    "one call alone, MB": "call_peak_bytes",
    "peak on the GPU, MB": "device_peak_bytes",
}

TEXT_BYTES = 256 * 1024
"""The most of a text file that is shown; it can be downloaded completely."""

PICTURES = (".png", ".jpg", ".jpeg", ".svg")
TEXTS = (".json", ".jsonl", ".csv", ".txt", ".md", ".log", ".prom", ".xml", ".html", ".py", ".toml")

Row = Mapping[str, Any]
Alert = tuple[str, str, str]
"""How grave it is (`error`, `warning`, `info`), what deserves attention, and what to do."""


def show(st: Any, monitor: Monitor) -> None:
    """Draw the page once. What is live draws itself again twice a second."""
    st.title("compilewatch")
    entries = monitor.entries()
    if not entries:
        st.info(
            f"{monitor.root} holds no run and no profile yet. Start one with `compilewatch sweep`, "
            "or use `compilewatch.profiling.Profiler` in a training script; it appears here."
        )
        _watch(st, monitor, {})
        return
    known = {entry.key: entry for entry in entries}
    key = st.sidebar.selectbox(
        "Run or profile", list(known), format_func=lambda key: known[key].label, key="entry"
    )
    st.sidebar.caption(str(monitor.root))
    _watch(st, monitor, {entry.key: entry.state for entry in entries})
    live = REFRESH_SECONDS if known[key].state == "running" else None
    for name, tab in zip(TABS, st.tabs(list(TABS)), strict=True):
        with tab:
            if name == "Artifacts":
                _artifacts(st, monitor, known[key])
            else:
                st.fragment(lambda name=name: draw(st, name, monitor, key), run_every=live)()


def _watch(st: Any, monitor: Monitor, shown: dict[str, str]) -> None:
    """Draw the page again when a run or profile begins, ends or is deleted."""

    def look() -> None:
        if {entry.key: entry.state for entry in monitor.entries()} != shown:
            st.rerun()

    st.fragment(look, run_every=WATCH_SECONDS)()


def draw(st: Any, tab: str, monitor: Monitor, key: str) -> None:
    """Draw a tab of an entry with what there is of it now, or say why it cannot be read."""
    entry = next((candidate for candidate in monitor.entries() if candidate.key == key), None)
    kinds = {"sweep": _sweep, "training": _training, "inference": _inference}
    try:
        if entry is None:
            st.error(f"{key} was deleted.")
        elif not kinds[entry.kind](st, tab, monitor, entry) and tab != "Overview":
            st.info("No times yet." if tab == "Timing" else "No memory was measured.")
    except StoreError as error:
        st.error(str(error))
    if tab == "Overview":
        _list(st, monitor)


def _list(st: Any, monitor: Monitor) -> None:
    """All runs and profiles; one that is selected is opened."""
    entries = monitor.entries()
    rows = entries[:ROWS_SHOWN]

    def open_row() -> None:
        for row in st.session_state["rows"]["selection"]["rows"]:
            st.session_state["entry"] = rows[row].key

    st.subheader("All runs and profiles")
    st.caption("Select a row to open it.")
    st.dataframe(
        [
            {
                "started": entry.started_at[:19].replace("T", " "),
                "kind": entry.kind,
                "what": entry.title,
                "state": entry.state,
                "folder": entry.key,
            }
            for entry in rows
        ],
        hide_index=True,
        width="stretch",
        key="rows",
        on_select=open_row,
        selection_mode="single-row",
    )
    if len(entries) > ROWS_SHOWN:
        st.caption(f"The newest {ROWS_SHOWN} of {len(entries)}.")


# --- what entries of all kinds have; each part says whether it drew anything ---------------------


def _head(
    st: Any,
    entry: MonitorEntry,
    figures: Iterable[tuple[str, str]],
    alerts: Iterable[Alert],
    done: int = 0,
    total: int = 0,
) -> bool:
    st.subheader(f"{entry.kind}: {entry.title}")
    st.caption("running; this page follows it" if entry.state == "running" else entry.state)
    if total:
        st.progress(min(1.0, done / total), f"{done} of {total}")
    shown, warnings = tuple(figures), tuple(alerts)
    for column, (name, value) in zip(st.columns(len(shown) or 1), shown, strict=False):
        column.metric(name, value)
    for level, text, advice in warnings:
        getattr(st, level)(f"**{_plain(text)}** → {_plain(advice)}")
    if shown and not warnings:
        st.success("Nothing deserves attention.")
    return True


def _plain(text: str) -> str:
    """Return text of which Markdown interprets nothing but code."""
    return "".join(f"\\{c}" if c in "*_[]<>$#|~" else c for c in text)


def _table(st: Any, heading: str, rows: Iterable[Row], **options: Any) -> bool:
    if content := list(rows):
        if heading:
            st.subheader(heading)
        st.dataframe(content, hide_index=True, width="stretch", **options)
    return bool(content)


def _operators(st: Any, operators: Sequence[OperatorStat]) -> bool:
    rows = (
        {"operator": o.name, "calls": o.calls, "own CPU ms": o.self_cpu_time_us / 1e3}
        for o in operators[:OPERATORS_SHOWN]
    )
    return _table(st, "Operators of the trace", rows)


def _chart(st: Any, widget: str, heading: str, rows: Sequence[Row], **axes: Any) -> bool:
    if rows:
        st.subheader(heading)
        getattr(st, widget)(rows, **axes)
    return bool(rows)


# --- sweeps --------------------------------------------------------------------------------------


def _sweep(st: Any, tab: str, monitor: Monitor, entry: MonitorEntry) -> bool:
    results, run = monitor.results(entry), cast(Run, entry.about)
    if tab == "Timing":
        seconds = [
            {"phase": phase, "seconds": value}
            for phase, value in summary.phase_seconds(results).items()
            if value > 0
        ]
        heading = "Seconds by phase, all requests together"
        slowest = [(spent(r), _on_target(r)) for r in summary.slowest(results, LARGEST)]
        drawn = _chart(st, "bar_chart", heading, seconds, x="phase", y="seconds")
        return _ranked(st, "Slowest requests", slowest, "seconds") or drawn
    if tab == "Memory":
        sizes = [(r.peak_memory_bytes / 1e6, _on_target(r)) for r in results if r.peak_memory_bytes]
        largest = sorted(sizes, reverse=True)[:LARGEST]
        return _ranked(st, "Largest requests, in megabytes", largest, "megabytes")
    figures = (
        ("results", f"{len(results):,} of {run.planned:,}"),
        ("without graph breaks", f"{sum(r.status is Status.PASS for r in results):,}"),
        ("graph breaks", f"{sum(r.graph_breaks or 0 for r in results):,}"),
    )
    alerts = _sweep_alerts(entry, results, run.planned)
    _head(st, entry, figures, alerts, len(results), run.planned)
    statuses = [
        {"status": status.value, "requests": count, "colour": _tone(status)}
        for status, count in summary.status_counts(results).items()
    ]
    if statuses:
        axes = {"x": "status", "y": "requests", "color": "colour"}
        st.bar_chart(statuses, **axes, horizontal=True)
    return True


def _tone(status: Status) -> str:
    """The colour that a status has in the report."""
    name = "compile_error" if status is Status.ERROR else status.value
    return MID_TONES.get(name, MID_TONES["no_verdict"])


def _on_target(result: Result) -> str:
    return f"{result.request.model.name} on {target_label(result.request.target)}"


def _ranked(st: Any, heading: str, values: Sequence[tuple[float, str]], what: str) -> bool:
    """A table, largest first: a chart would sort and cut off the names."""
    return _table(st, heading, ({"request": name, what: round(v, 1)} for v, name in values))


def _sweep_alerts(entry: MonitorEntry, results: Sequence[Result], planned: int) -> Iterator[Alert]:
    if entry.state == "interrupted":
        done = f"interrupted after {len(results)} of {planned} requests"
        yield "error", done, "continue it with `compilewatch sweep --resume`"
    if entry.state == "finished" and len(results) < planned:
        missing = f"{planned - len(results)} planned requests have no result"
        yield "error", missing, "see the notes of `compilewatch report`"
    for status in (Status.CRASHED, Status.TIMEOUT, Status.OOM, Status.MISMATCH, Status.ERROR):
        names = [result.request.model.name for result in results if result.status is status]
        if names:
            text = f"{len(names)} with the status {status}: {', '.join(names[:EXAMPLES])}"
            yield "warning", text, f"run `compilewatch show {names[0]}`"
    reasons = Counter(label for r in results for label in set(map(reason_label, r.breaks)))
    for reason, count in reasons.most_common(3):
        text = f"graph break in {plural(count, 'result')}: {reason}"
        yield "info", text, "see the reason's page of the report for models, lines and a fix"


# --- training ------------------------------------------------------------------------------------


def _training(st: Any, tab: str, monitor: Monitor, entry: MonitorEntry) -> bool:
    profile = monitor.training(entry)
    steps = profile.steps[-STEPS_SHOWN:]
    times = profile.times
    if tab == "Timing":
        drawn = bool(steps) and _stages(st, steps, times.shares)
        return _operators(st, training.top_operators(profile, OPERATORS_SHOWN)) or drawn
    if tab == "Memory":
        sizes = [
            {"step": step.index, "resident MB": step.resident_bytes / 1e6}
            for step in steps
            if step.resident_bytes is not None
        ]
        heading = "Resident memory after each step, in megabytes"
        return _chart(st, "line_chart", heading, sizes, x="step", y="resident MB")
    metrics = profile.metrics
    figures = [("steps", f"{steps[-1].index + 1 if steps else 0:,}")]
    if times.step is not None:
        figures.append(("median step", f"{times.step.median * 1e3:,.3g} ms"))
    if metrics.samples_per_second is not None:
        figures.append(("samples per second", f"{metrics.samples_per_second:,.4g}"))
    if metrics.last_loss is not None:
        figures.append(("newest loss", f"{metrics.last_loss:.4g}"))
    findings = training.findings(profile)
    alerts = [("warning", f.found, f.advice) for f in findings if f.code != "running"]
    _head(st, entry, figures, alerts)
    for sentence in training.explanation(profile):
        st.write(_plain(sentence))
    return True


def _stages(
    st: Any, steps: Sequence[training.Step], shares: Mapping[training.Stage, float]
) -> bool:
    """Draw the stages of each step, and how they share the steady ones.

    The first step compiles and takes many times as long: the others would be a line at zero.
    """
    totals = [sum(step.stages.values()) for step in steps]
    slow = len(totals) > 2 and totals[0] > max(SLOW_FACTOR * max(totals[1:]), SLOW_SECONDS)
    rows = [
        {"step": step.index, **{stage.value: step.stages.get(stage, 0.0) * 1e3 for stage in shares}}
        for step in steps[slow:]
    ]
    names = [stage.value for stage in shares]
    heading = "Stages of each step, in milliseconds"
    _chart(st, "area_chart", heading, rows, x="step", y=names, stack=True)
    if slow:
        st.caption(f"Step {steps[0].index} took {totals[0]:,.3g} s and is not drawn.")
    parts = [{"stage": stage.value, "share": share} for stage, share in shares.items()]
    axes = {"x": "stage", "y": "share", "horizontal": True}
    return _chart(st, "bar_chart", "Share of the steady steps", parts, **axes) or bool(rows)


# --- inference -----------------------------------------------------------------------------------


def _inference(st: Any, tab: str, monitor: Monitor, entry: MonitorEntry) -> bool:
    profile = monitor.inference(entry)
    if profile is None:
        ended = (
            "error",
            "the process ended before the record was written",
            "measure the model again with `compilewatch profile infer`",
        )
        alerts = [ended] if entry.state == "interrupted" else []
        return tab == "Overview" and _head(st, entry, (), alerts)
    measured = [(t.target, p) for t, p in profile.points() if p.latency is not None]
    if tab == "Memory":
        sizes = (
            {"target": target, "batch size": point.batch_size}
            | {
                name: report.in_megabytes(getattr(point.memory, field, None))
                for name, field in MEMORY.items()
            }
            for target, point in measured
        )
        return _table(st, "Memory by batch size", sizes)
    if tab == "Timing":
        stored = monitor.artifacts(entry)
        for name in (report.COMPARISON, report.CALL):
            if name in stored:
                _picture(st, monitor, entry, name)
        broken = analysis.broken(profile)
        breaks = (
            {
                "line": f"{cost.file.rpartition('/')[2]}:{cost.line}",
                "cost": report.break_cost_words(cost),
                "reason": cost.reason,
            }
            for cost in (broken[1].breaks[:BREAKS_SHOWN] if broken is not None else ())
        )
        _table(st, "What each graph break costs in a call", breaks)
        return _operators(st, report.operators_of(profile)) or bool(measured)
    _head(st, entry, _inference_figures(profile), _inference_alerts(profile))
    for name, value in report.answers(profile):
        st.write(_plain(f"{name}: {value}"))
    return True


def _inference_figures(profile: InferenceProfile) -> Iterator[tuple[str, str]]:
    best = analysis.fastest(profile)
    if best is None:
        return
    target, point = best
    yield "best batch", f"{point.batch_size} on {target.target}"
    yield "samples per second", report.rate(point.samples_per_second)
    yield "latency per sample", milliseconds(point.per_sample_seconds)
    if point.speedup is not None:
        yield "speed-up", f"{point.speedup:.2f} ×"


def _inference_alerts(profile: InferenceProfile) -> Iterator[Alert]:
    for target in profile.targets:
        failed = next((point for point in target.points if point.latency is None), None)
        if failed is not None:
            where = f"{target.target} was not measured at batch {failed.batch_size}"
            text = f"{where}: {failed.status}: {failed.detail}"
            yield "error", text, "the other batch sizes and targets were measured"
    unstable = [
        f"{target.target} at batch {point.batch_size}"
        for target, point in profile.points()
        if point.latency is not None and not point.latency.stable
    ]
    if unstable:
        text = f"the rounds differ by more than 10 %: {', '.join(unstable)}"
        yield "warning", text, "measure again on a calm machine, or trust the ratios only"
    for note in profile.notes:
        yield "info", note, "see the report of the profile"


# --- files ---------------------------------------------------------------------------------------


def _artifacts(st: Any, monitor: Monitor, entry: MonitorEntry) -> None:
    sizes = monitor.artifacts(entry)
    if not sizes:
        st.info("No files yet.")
        return
    st.caption(f"{len(sizes)} files in {monitor.root / entry.key}")
    name = st.selectbox(
        "File", list(sizes), format_func=lambda name: f"{name} ({sizes[name] / 1e3:,.1f} kB)"
    )
    try:
        st.download_button(
            "Download",
            data=lambda: monitor.read(entry, name),
            file_name=PurePosixPath(name).name,
            on_click="ignore",
        )
        _preview(st, monitor, entry, name, sizes[name])
    except StoreError as error:
        st.error(str(error))


def _picture(st: Any, monitor: Monitor, entry: MonitorEntry, name: str) -> None:
    picture = monitor.read(entry, name)
    st.image(picture.decode(errors="replace") if name.endswith(".svg") else picture)


def _preview(st: Any, monitor: Monitor, entry: MonitorEntry, name: str, size: int) -> None:
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in PICTURES:
        _picture(st, monitor, entry, name)
    elif suffix in TEXTS or not suffix:
        text = monitor.read(entry, name, TEXT_BYTES).decode(errors="replace")
        if size > TEXT_BYTES:
            st.caption(f"The first {TEXT_BYTES // 1024} kB; download it for the rest.")
        st.code(text, language={".json": "json", ".py": "python"}.get(suffix))
    else:
        st.info("This file has no preview: download it.")
    if name.endswith("trace.json"):
        st.caption("Open the downloaded file at chrome://tracing or in Perfetto.")


if __name__ == "__main__":
    import streamlit

    streamlit.set_page_config(page_title="compilewatch", layout="wide")
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "outputs")
    # One view for all visitors and refreshes, because it remembers what it has read.
    show(streamlit, streamlit.cache_resource(Monitor, show_spinner=False)(root))
