"""The files of a profile for other programs and for people without a browser."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from compilewatch.extras.profiles.infer import analysis
from compilewatch.extras.profiles.infer import words as words
from compilewatch.extras.profiles.infer.records import (
    EAGER,
    BatchPoint,
    InferenceProfile,
    OpStat,
    Samples,
    Software,
    TargetProfile,
)
from compilewatch.report import wording

MEGABYTE = 1e6
"""The unit of these files, as in other profilers: 1 MB = 1,000,000 bytes."""

COLUMNS = (
    "target",
    "batch_size",
    "status",
    "samples",
    "rounds",
    "latency_per_batch_ms_median",
    "latency_per_batch_ms_mean",
    "latency_per_batch_ms_stdev",
    "latency_per_batch_ms_ci_low",
    "latency_per_batch_ms_ci_high",
    "latency_per_batch_ms_p90",
    "latency_per_batch_ms_p95",
    "latency_per_batch_ms_p99",
    "latency_per_sample_ms_median",
    "cpu_time_per_batch_ms_median",
    "throughput_samples_per_sec_mean",
    "throughput_batches_per_sec_mean",
    "tokens_per_sec_mean",
    "rss_peak_mb",
    "call_peak_mb",
    "device_peak_mb",
    "utilization_percent",
    "device_utilization_percent",
    "device_used_mb",
    "speedup",
    "first_call_s",
    "warm_first_call_s",
    "load_s",
    "graphs",
    "graph_breaks",
    "stable",
    "detail",
)


def files(profile: InferenceProfile, samples: Sequence[Samples]) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of every text file of a profile."""
    yield "raw_values.json", msgspec.json.encode(samples)
    yield "baseline_metrics.json", _json(baseline_metrics(profile))
    yield "detailed_metrics.csv", detailed_metrics(profile).encode()
    yield "baseline_summary_report.txt", summary_report(profile).encode()
    operators = operators_of(profile)
    if operators:
        yield "op_stats.csv", op_stats(operators).encode()


def operators_of(profile: InferenceProfile) -> tuple[OpStat, ...]:
    """The operators of `profiler_traces/trace.json`."""
    main = profile.target(analysis.main_traced(profile.options.targets) or "")
    return main.operators if main is not None else ()


def baseline_metrics(profile: InferenceProfile) -> dict[str, Any]:
    """The main figures: `full_dataset_metrics` of the best target, then every batch size."""
    chosen = analysis.fastest(profile)
    target, point = chosen if chosen is not None else (None, None)
    scored = target.accuracy if target is not None else None
    memory = point.memory if point is not None else None
    return {
        "schema_version": profile.schema_version,
        "profile": profile.id,
        "model": {
            "name": profile.model,
            "parameters": profile.parameters,
            "trainable_parameters": profile.trainable_parameters,
            "size_mb": in_megabytes(profile.model_bytes),
            "dtype": profile.options.dtype,
            "size": profile.options.size,
        },
        "machine": profile.machine,
        "full_dataset_metrics": {
            "target": target.target if target is not None else None,
            "optimal_batch_size": point.batch_size if point is not None else None,
            "throughput_samples_per_sec": point.samples_per_second if point is not None else None,
            "latency_per_sample_ms": _per_sample_ms(point) if point is not None else None,
            "accuracy": scored.accuracy if scored else None,
            "f1_macro": scored.f1_macro if scored else None,
            "f1_weighted": scored.f1_weighted if scored else None,
            "num_samples": scored.samples if scored else None,
            "total_time_s": scored.seconds if scored else None,
            "gpu_mem_used": in_megabytes(memory.device_peak_bytes) if memory else None,
            "cpu_mem_used": in_megabytes(memory.rss_peak_bytes) if memory else None,
            "bottleneck": analysis.bottleneck(profile),
        },
        "targets": {
            each.target: {
                "software": each.software,
                "best_batch_size": each.best_batch_size,
                "batch_sizes": {str(p.batch_size): dict(_row(each, p)) for p in each.points},
                "generation": each.generation,
                "accuracy": each.accuracy,
                "setting_fixes": each.setting_fixes,
            }
            for each in profile.targets
        },
    }


def detailed_metrics(profile: InferenceProfile) -> str:
    """One row for each target and batch size. What was not measured is empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for target in profile.targets:
        for point in target.points:
            writer.writerow(_row(target, point))
    return out.getvalue()


def op_stats(operators: Sequence[OpStat]) -> str:
    """The operators as `key_averages()` has them, in its units: microseconds and bytes."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        (
            *("name", "calls", "self_cpu_time_us", "cpu_time_total_us"),
            *("self_cpu_memory_bytes", "flops", "self_device_time_us"),
        )
    )
    for each in sorted(operators, key=lambda o: -o.self_cpu_seconds):
        times = (round(each.self_cpu_seconds * 1e6, 3), round(each.total_cpu_seconds * 1e6, 3))
        device = each.self_device_seconds
        writer.writerow(
            (
                *(each.name, each.calls, *times, each.self_memory_bytes, each.flops),
                round(device * 1e6, 3) if device is not None else None,
            )
        )
    return out.getvalue()


def summary_report(profile: InferenceProfile) -> str:
    """The figures as text: Full Dataset Performance, then Batch Size Analysis."""
    lines = [f"Inference profile of {profile.model}", "=" * 70, ""]
    lines += [f"{name:<22}{value}" for name, value in facts(profile)]
    lines += ["", "Full Dataset Performance", "-" * 70]
    scored = [t for t in profile.targets if t.accuracy is not None]
    for target in scored:
        assert target.accuracy is not None
        lines.append(f"{target.target:<22}{words.accuracy_words(target.accuracy)}")
    if not scored:
        lines.append("not measured: no labelled texts were given (--data)")
    lines += ["", "Batch Size Analysis", "-" * 70]
    width = max(12, *(len(target.target) + 2 for target in profile.targets))
    heading = ("target", "batch", "ms/batch", "ms/sample", "samples/s", "peak MB", "speed-up")
    lines.append(_columns(heading, width))
    for target in profile.targets:
        lines += [_columns(_cells(target, point), width) for point in target.points]
    lines += ["", "Findings", "-" * 70]
    lines += [f"{name:<22}{value}" for name, value in answers(profile)]
    lines += [f"Note: {note}" for note in profile.notes]
    return "\n".join(lines) + "\n"


def facts(profile: InferenceProfile) -> list[tuple[str, str]]:
    """What was measured, and where, as (name, value)."""
    options, machine = profile.options, profile.machine
    tokens = f", {profile.tokens_per_sample} tokens a sample" if profile.tokens_per_sample else ""
    size = f"{(profile.model_bytes or 0) / MEGABYTE:,.2f} MB"
    return [
        ("Model", f"{profile.model}, {profile.parameters or 0:,} parameters, {size}"),
        ("Inputs", f"{profile.inputs_strategy}, {options.dtype}{tokens}"),
        (
            "Machine",
            f"{machine.cpu}, {machine.cores} cores, {wording.memory(machine.memory_bytes)}",
        ),
        ("Threads", str(options.threads)),
        ("Software", "; ".join(_versions(profile))),
        ("Measured", f"up to {options.rounds} rounds of {options.runs} calls, targets in turns"),
    ]


def _versions(profile: InferenceProfile) -> Iterator[str]:
    """The versions of each environment, after the targets that ran in it."""
    environments: dict[str, tuple[Software, list[str]]] = {}
    for target in profile.targets:
        known = environments.setdefault(target.software.environment, (target.software, []))
        known[1].append(target.target)
    for software, names in environments.values():
        said = f"torch {software.torch}, transformers {software.transformers}"
        yield said if len(environments) == 1 else f"{', '.join(names)}: {said}"


def answers(profile: InferenceProfile) -> list[tuple[str, str]]:
    """What people look for: the best batch, the bottleneck, the accuracy."""
    chosen = analysis.fastest(profile)
    best = "nothing was measured"
    if chosen is not None:
        target, point = chosen
        best = (
            f"{point.batch_size} on {target.target}: {point.samples_per_second or 0:,.1f} "
            f"samples/s, {_per_sample_ms(point) or 0:,.2f} ms a sample"
        )
    found = [("Best batch", best), ("Main bottleneck", analysis.bottleneck(profile))]
    for each in profile.targets:
        if each.accuracy is not None:
            found.append((f"Accuracy ({each.target})", words.accuracy_words(each.accuracy)))
        if each.generation is not None:
            made = each.generation
            found.append(
                (
                    f"Generation ({each.target})",
                    f"prompt {made.prefill_tokens_per_second:,.0f} tokens/s, then "
                    f"{made.decode_tokens_per_second:,.1f} tokens/s, batch {made.batch_size}",
                )
            )
        on = f" on {each.target}" if sum(bool(t.setting_fixes) for t in profile.targets) > 1 else ""
        found += [
            (f"Setting {c.setting}{on}", words.setting_fix_words(c)) for c in each.setting_fixes
        ]
        paid = next((p for p in each.points if p.break_even_calls_cold is not None), None)
        against = next((p for p in reversed(each.points) if p.against_first is not None), None)
        if against is not None:
            found.append((each.target, words.against_first_words(each.target, against)))
        if paid is not None:
            found.append((f"Break-even ({each.target})", words.break_even_words(paid)))
    return found


def _row(target: TargetProfile, point: BatchPoint) -> dict[str, Any]:
    timing, memory = point.latency, point.memory
    seconds = point.latency.median_seconds if point.latency else None
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {
        "target": target.target,
        "batch_size": point.batch_size,
        "status": point.status.value,
        "throughput_samples_per_sec_mean": point.samples_per_second,
        "throughput_batches_per_sec_mean": 1 / seconds if seconds else None,
        "tokens_per_sec_mean": point.tokens_per_second,
        "utilization_percent": point.utilization * 100 if point.utilization is not None else None,
        "device_utilization_percent": (
            point.device_utilization * 100 if point.device_utilization is not None else None
        ),
        "speedup": 1.0 if target.target == EAGER and timing else point.speedup,
        "first_call_s": point.first_call_seconds,
        "warm_first_call_s": point.warm_first_call_seconds,
        "load_s": point.load_seconds,
        "graphs": point.graphs,
        "graph_breaks": point.graph_breaks,
        "detail": point.detail,
    }
    if timing is not None:
        row |= {
            "samples": timing.count,
            "rounds": timing.rounds,
            "latency_per_batch_ms_median": timing.median_seconds * 1e3,
            "latency_per_batch_ms_mean": timing.mean_seconds * 1e3,
            "latency_per_batch_ms_stdev": timing.stdev_seconds * 1e3,
            "latency_per_batch_ms_ci_low": timing.ci_low_seconds * 1e3,
            "latency_per_batch_ms_ci_high": timing.ci_high_seconds * 1e3,
            "latency_per_batch_ms_p90": _ms(timing.p90_seconds),
            "latency_per_batch_ms_p95": _ms(timing.p95_seconds),
            "latency_per_batch_ms_p99": _ms(timing.p99_seconds),
            "latency_per_sample_ms_median": _per_sample_ms(point),
            "cpu_time_per_batch_ms_median": _ms(timing.cpu_median_seconds),
            "stable": timing.stable,
        }
    if memory is not None:
        row |= {
            "rss_peak_mb": in_megabytes(memory.rss_peak_bytes),
            "call_peak_mb": in_megabytes(memory.call_peak_bytes),
            "device_peak_mb": in_megabytes(memory.device_peak_bytes),
            "device_used_mb": in_megabytes(memory.device_used_bytes),
        }
    return row


def _cells(target: TargetProfile, point: BatchPoint) -> tuple[str, ...]:
    if point.latency is None:
        return (target.target, str(point.batch_size), f"{point.status.value}: {point.detail}")
    memory = point.memory.rss_peak_bytes if point.memory else None
    speedup = "1.00" if target.target == EAGER else f"{point.speedup:.2f}" if point.speedup else "-"
    return (
        target.target,
        str(point.batch_size),
        f"{point.latency.median_seconds * 1e3:,.2f}",
        f"{_per_sample_ms(point) or 0:,.2f}",
        f"{point.samples_per_second or 0:,.1f}",
        f"{memory / MEGABYTE:,.0f}" if memory else "-",
        speedup,
    )


def _columns(cells: Sequence[str], width: int) -> str:
    first, *rest = cells
    return (f"{first:<{width}}" + "".join(f"{cell:>11}" for cell in rest)).rstrip()


def _per_sample_ms(point: BatchPoint) -> float | None:
    return 1e3 / point.samples_per_second if point.samples_per_second else None


def _ms(seconds: float | None) -> float | None:
    return seconds * 1e3 if seconds is not None else None


def in_megabytes(size: int | None) -> float | None:
    return size / MEGABYTE if size is not None else None


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
