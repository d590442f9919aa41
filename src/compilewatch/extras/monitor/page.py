"""The monitor page, and the script that Streamlit runs: `streamlit run …/page.py -- OUTPUTS`.

Streamlit's environment has neither compilewatch nor torch: `worker/process/bootstrap.py` loads the
package from its files, and then runs Streamlit in the same process.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from compilewatch.errors import StoreError
from compilewatch.extras.monitor import view
from compilewatch.extras.monitor.view import TEXT_BYTES, Details, Monitor, MonitorEntry, Row
from compilewatch.report.charts import MID_TONES

REFRESH_SECONDS = 0.5
WATCH_SECONDS = 1.0

TABS = ("Overview", "Timing", "Memory", "Artifacts")

ROWS_SHOWN = 500

BESIDE: dict[str, Any] = {"stack": False}

PICTURES = (".png", ".jpg", ".jpeg", ".svg")
TEXTS = (".json", ".jsonl", ".csv", ".txt", ".md", ".log", ".prom", ".xml", ".html", ".py", ".toml")


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
    live = known[key].state == "running"
    overview, timing, memory, artifacts = st.tabs(list(TABS))
    _live(st, overview, live, lambda: _overview(st, monitor, key))
    _live(st, timing, live, lambda: _timing(st, _details(st, monitor, key)))
    _live(st, memory, live, lambda: _memory(st, _details(st, monitor, key)))
    with artifacts:
        _artifacts(st, monitor, known[key])


def _live(st: Any, tab: Any, live: bool, draw: Any) -> None:
    """Draw into a tab, again twice a second while the entry is being written."""
    with tab:
        st.fragment(draw, run_every=REFRESH_SECONDS if live else None)()


def _watch(st: Any, monitor: Monitor, shown: dict[str, str]) -> None:
    """Draw the page again when a run or profile begins, ends or is deleted."""

    def look() -> None:
        if {entry.key: entry.state for entry in monitor.entries()} != shown:
            st.rerun()

    st.fragment(look, run_every=WATCH_SECONDS)()


def _details(st: Any, monitor: Monitor, key: str) -> Details | None:
    """Return the current details of an entry, or show why they cannot be read."""
    entry = next((candidate for candidate in monitor.entries() if candidate.key == key), None)
    if entry is None:
        st.error(f"{key} was deleted.")
        return None
    try:
        return monitor.details(entry)
    except StoreError as error:
        st.error(str(error))
        return None


def _overview(st: Any, monitor: Monitor, key: str) -> None:
    details = _details(st, monitor, key)
    if details is not None:
        _summary(st, details)
    st.subheader("All runs and profiles")
    entries = monitor.entries()
    rows = entries[:ROWS_SHOWN]

    def open_row() -> None:
        for row in st.session_state["rows"]["selection"]["rows"]:
            st.session_state["entry"] = rows[row].key

    st.caption("Select a row to open it.")
    st.dataframe(
        [
            {
                "started": entry.started_at[:19].replace("T", " "),
                "kind": entry.kind,
                "what": entry.title,
                "state": entry.state,
                "done": "" if entry.done is None else f"{entry.done:,}",
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


def _summary(st: Any, details: Details) -> None:
    entry = details.entry
    st.subheader(f"{entry.kind}: {entry.title}")
    st.caption("running; this page follows it" if entry.state == "running" else entry.state)
    if entry.total and entry.done is not None:
        st.progress(min(1.0, entry.done / entry.total), f"{entry.done} of {entry.total}")
    if details.figures:
        columns = st.columns(len(details.figures))
        for column, (name, value) in zip(columns, details.figures, strict=True):
            column.metric(name, value)
    for alert in details.alerts:
        draw = {"error": st.error, "warning": st.warning}.get(alert.level, st.info)
        draw(f"**{_plain(alert.text)}** → {_plain(alert.advice)}")
    if not details.alerts and details.figures:
        st.success("Nothing deserves attention.")
    for sentence in details.explanation:
        st.write(_plain(sentence))
    _table(st, "Changes since the baseline", details.changes)
    if details.statuses:
        st.bar_chart(
            [
                {"status": name, "requests": count, "colour": _tone(name)}
                for name, count in details.statuses.items()
            ],
            x="status",
            y="requests",
            color="colour",
            horizontal=True,
        )


def _table(st: Any, heading: str, rows: Sequence[Row]) -> None:
    if rows:
        st.subheader(heading)
        st.dataframe(list(rows), hide_index=True, width="stretch")


def _tone(status: str) -> str:
    """The colour that a status has in the report."""
    name = {"error": "compile_error"}.get(status, status)
    return MID_TONES.get(name, MID_TONES["no_verdict"])


def _timing(st: Any, details: Details | None) -> None:
    if details is None:
        return
    if details.batch_rows:
        _inference_timing(st, details)
    if details.stage_rows:
        st.subheader("Stages of each step, in milliseconds")
        stages = list(details.shares)
        rows = [
            {name: row.get(name, 0.0) for name in ("step", *stages)} for row in details.stage_rows
        ]
        st.area_chart(rows, x="step", y=stages, stack=True)
        if details.left_out:
            st.caption(details.left_out)
        _bars(st, "Share of the steady steps", ("stage", "share"), details.shares, horizontal=True)
    _table(st, "Operators of the trace", details.operators)
    if details.phase_seconds:
        heading = "Seconds by phase, all requests together"
        _bars(st, heading, ("phase", "seconds"), details.phase_seconds)
    _ranked(st, "Slowest requests", details.slowest, "seconds")
    if not (details.stage_rows or details.phase_seconds or details.batch_rows):
        st.info("No times yet.")


def _bars(
    st: Any, heading: str, axes: tuple[str, str], values: dict[str, float], **how: Any
) -> None:
    st.subheader(heading)
    label, figure = axes
    rows = [{label: name, figure: value} for name, value in values.items()]
    st.bar_chart(rows, x=label, y=figure, **how)


def _ranked(st: Any, heading: str, values: Sequence[tuple[str, float]], what: str) -> None:
    """A bar in each row of a table, largest first: a chart would sort and cut off the names."""
    if not values:
        return
    st.subheader(heading)
    st.dataframe(
        [{"request": name, what: value} for name, value in values],
        hide_index=True,
        width="stretch",
        column_config={
            what: st.column_config.ProgressColumn(
                what, format="%.1f", min_value=0.0, max_value=max(value for _, value in values)
            )
        },
    )


def _inference_timing(st: Any, details: Details) -> None:
    figures = (view.LATENCY, view.PER_SAMPLE, view.RATE, view.SPEEDUP)
    _by_batch(st, details, figures)
    if details.call_rows:
        st.subheader("Where a call goes")
        _parts(st, details.call_rows, "call", tuple(view.PARTS))
    if details.break_rows:
        st.subheader("What each graph break costs in a call")
        _parts(st, details.break_rows, "line", view.COSTS)


def _parts(st: Any, rows: Sequence[Row], label: str, parts: Sequence[str]) -> None:
    """A bar for each row, and the same as a table: an axis cuts long labels off."""
    st.bar_chart(
        [{name: row[name] for name in (label, *parts)} for row in rows],
        x=label,
        y=list(parts),
        color=[view.PARTS[name] for name in parts],
        x_label="",  # of the labels: in a horizontal chart, the values are y
        y_label="milliseconds",
        horizontal=True,
        stack=True,
    )
    st.dataframe(list(rows), hide_index=True, width="stretch")


def _by_batch(st: Any, details: Details, figures: Sequence[str]) -> None:
    """One chart for each figure that was measured, two in a row, with a line for each target."""
    shown = [name for name in figures if any(name in row for row in details.batch_rows)]
    for start in range(0, len(shown), 2):
        columns = st.columns(2)
        for column, name in zip(columns, shown[start : start + 2], strict=False):
            column.subheader(f"{name[0].upper()}{name[1:]}")
            _chart(column, details, name)


def _chart(column: Any, details: Details, name: str) -> None:
    by_size: dict[str | float, Row] = {}
    for row in details.batch_rows:
        if name in row:
            size = row[view.BATCH]
            point = by_size.setdefault(size, {view.BATCH: size})
            point[str(row[view.TARGET])] = row[name]
    targets = [t for t in details.tones if any(t in point for point in by_size.values())]
    colours = [details.tones[target] for target in targets]
    # A line needs two points; of one batch size, bars show more.
    draw, how = (column.line_chart, {}) if len(by_size) > 1 else (column.bar_chart, BESIDE)
    rows = list(by_size.values())
    draw(rows, x=view.BATCH, y=targets, color=colours, y_label="", **how)


def _memory(st: Any, details: Details | None) -> None:
    if details is None:
        return
    if details.batch_rows:
        _by_batch(st, details, (view.PEAK, view.CALL, view.DEVICE))
    if details.memory_rows:
        st.subheader("Resident memory after each step, in megabytes")
        st.line_chart(list(details.memory_rows), x="step", y="resident MB")
    _ranked(st, "Largest requests, in megabytes", details.largest, "megabytes")
    measured = any(view.PEAK in row for row in details.batch_rows)
    if not (details.memory_rows or details.largest or measured):
        st.info("No memory was measured.")


def _artifacts(st: Any, monitor: Monitor, entry: MonitorEntry) -> None:
    artifacts = monitor.artifacts(entry)
    if not artifacts:
        st.info("No files yet.")
        return
    st.caption(f"{len(artifacts)} files in {monitor.root / entry.key}")
    sizes = {one.name: one.bytes for one in artifacts}
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


def _preview(st: Any, monitor: Monitor, entry: MonitorEntry, name: str, size: int) -> None:
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in PICTURES:
        picture = monitor.read(entry, name)
        st.image(picture.decode(errors="replace") if suffix == ".svg" else picture)
    elif suffix in TEXTS or not suffix:
        text = monitor.read(entry, name, TEXT_BYTES).decode(errors="replace")
        if size > TEXT_BYTES:
            st.caption(f"The first {TEXT_BYTES // 1024} kB; download it for the rest.")
        st.code(text, language={".json": "json", ".py": "python"}.get(suffix))
    else:
        st.info("This file has no preview: download it.")
    if name.endswith("trace.json"):
        st.caption("Open the downloaded file at chrome://tracing or in Perfetto.")


def _plain(text: str) -> str:
    """Return text of which Markdown interprets nothing but code."""
    return "".join(f"\\{c}" if c in "*_[]<>$#|~" else c for c in text)


if __name__ == "__main__":
    import streamlit

    streamlit.set_page_config(page_title="compilewatch", layout="wide")
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "outputs")
    # One view for all visitors and refreshes, because it remembers what it has read.
    show(streamlit, streamlit.cache_resource(Monitor, show_spinner=False)(root))
