"""Files, pages and pictures of a profile, from a record."""

import csv
import io
import json
import xml.etree.ElementTree as ET

import msgspec
import pytest

from compilewatch.extras.profiles import report
from compilewatch.extras.profiles.records import BatchPoint, InferenceProfile
from compilewatch.records import Status
from tests import profiled

FILES = dict[str, bytes]


@pytest.fixture(scope="module")
def files() -> FILES:
    made = profiled.profile()
    return dict(report.figures(*made)) | dict(report.page(made[0]))


def failed() -> InferenceProfile:
    """A profile of which nothing could be measured."""
    made, _ = profiled.profile()
    point = BatchPoint(batch_size=1, status=Status.OOM, detail="used 9 GiB of 8 GiB allowed")
    targets = tuple(
        msgspec.structs.replace(t, points=(point,), traced_operators=(), accuracy=None)
        for t in made.targets
    )
    return msgspec.structs.replace(made, targets=targets)


def test_the_metrics_and_the_table_have_what_others_read(files: FILES) -> None:
    found = json.loads(files["baseline_metrics.json"])
    whole = found["full_dataset_metrics"]
    assert (whole["target"], whole["optimal_batch_size"]) == ("inductor", 8)
    assert whole["gpu_mem_used"] is None  # not measured, so not zero
    assert found["targets"]["eager"]["accuracy"]["accuracy"] == 0.9
    assert set(found["targets"]["inductor"]["batch_sizes"]) == {"1", "4", "8"}
    rows = list(csv.DictReader(io.StringIO(files["detailed_metrics.csv"].decode())))
    assert len(rows) == 6  # one for each target and batch
    first = rows[0]
    assert float(first["throughput_samples_per_sec_mean"]) == pytest.approx(100, rel=0.02)
    assert float(first["latency_per_batch_ms_median"]) == pytest.approx(10, rel=0.02)
    assert first["latency_per_batch_ms_p99"] == ""  # 100 samples are too few
    assert first["latency_per_batch_ms_p90"] != ""
    text = files["baseline_summary_report.txt"].decode()
    for part in ("Full Dataset Performance", "Batch Size Analysis", "Best batch", "accuracy 0.9"):
        assert part in text


@pytest.mark.process  # matplotlib asks the system for its fonts, once
def test_both_pictures_are_made_and_neither_without_a_measurement() -> None:
    made = dict(report.plots(profiled.profile()[0]))
    assert set(made) == {"plots/batch_size_comparison.png", "plots/metrics_heatmap.png"}
    assert all(data.startswith(b"\x89PNG\r\n\x1a\n") for data in made.values())
    assert dict(report.plots(failed())) == {}


def test_the_page_has_no_scripts_and_links_what_exists(files: FILES) -> None:
    text = files["report.html"].decode()
    assert "<script" not in text
    assert "Net&lt;script&gt;" in text  # a model's name is text
    assert " style=" not in text
    assert f'<img src="{report.COMPARISON}"' in text
    for name in (report.CALL, "charts/call-narrow.svg"):
        root = ET.fromstring(files[name])
        assert root.findtext("{http://www.w3.org/2000/svg}desc")
        assert "nan" not in files[name].decode()
        assert name in text
    for name in ("baseline_metrics.json", "detailed_metrics.csv", "op_stats.csv"):
        assert f'href="{name}"' in text
    # The cost of a break is beside its line.
    assert "<mark>8  scale = x.sum().item()</mark>" in text
    assert "12.5 % of a call" in text


def test_a_page_without_a_measurement_says_why() -> None:
    made = dict(report.page(failed()))
    page = made["report.html"].decode()
    assert "used 9 GiB of 8 GiB allowed" in page
    assert "<img" not in page
    assert not any(name.startswith("charts/") for name in made)
    text = dict(report.figures(failed(), ()))["baseline_summary_report.txt"].decode()
    assert "nothing was measured" in text
