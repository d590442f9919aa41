"""Files, pages and pictures of a profile, from a record."""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ET

import msgspec
import pytest

from compilewatch.extras.profiles import report
from compilewatch.extras.profiles.records import BatchPoint, InferenceProfile
from compilewatch.records import Status
from compilewatch.report.wording import milliseconds
from tests import profiled

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return dict(report.figures(*profiled.profile()))


@pytest.fixture(scope="module")
def page_files() -> dict[str, bytes]:
    return dict(report.page(*profiled.profile()))


def failed() -> InferenceProfile:
    """A profile of which nothing could be measured."""
    made, _ = profiled.profile()
    point = BatchPoint(batch_size=1, status=Status.OOM, detail="used 9 GiB of 8 GiB allowed")
    targets = tuple(
        msgspec.structs.replace(t, points=(point,), operators=(), setting_fixes=(), accuracy=None)
        for t in made.targets
    )
    return msgspec.structs.replace(made, targets=targets)


def test_the_names_are_those_of_the_founding_documents(files: dict[str, bytes]) -> None:
    assert set(files) == {
        "baseline_metrics.json",
        "baseline_summary_report.txt",
        "detailed_metrics.csv",
        "op_stats.csv",
        "raw_values.json",
    }


def test_the_metrics_have_the_fields_that_others_read(files: dict[str, bytes]) -> None:
    found = json.loads(files["baseline_metrics.json"])
    whole = found["full_dataset_metrics"]
    assert whole["target"] == "inductor"
    assert whole["optimal_batch_size"] == 8
    assert whole["gpu_mem_used"] is None  # not measured, so not zero
    assert found["targets"]["eager"]["accuracy"]["accuracy"] == 0.9
    assert set(found["targets"]["inductor"]["batch_sizes"]) == {"1", "4", "8"}


def test_the_table_has_a_row_for_each_target_and_batch(files: dict[str, bytes]) -> None:
    rows = list(csv.DictReader(io.StringIO(files["detailed_metrics.csv"].decode())))
    assert len(rows) == 6
    first = rows[0]
    assert float(first["throughput_samples_per_sec_mean"]) == pytest.approx(100, rel=0.02)
    assert float(first["latency_per_batch_ms_median"]) == pytest.approx(10, rel=0.02)
    assert first["latency_per_batch_ms_p99"] == ""  # 100 samples are too few
    assert first["latency_per_batch_ms_p90"] != ""


def test_the_summary_has_its_sections(files: dict[str, bytes]) -> None:
    text = files["baseline_summary_report.txt"].decode()
    for part in ("Full Dataset Performance", "Batch Size Analysis", "Best batch", "accuracy 0.9"):
        assert part in text


@pytest.mark.process  # matplotlib asks the system for its fonts, once
def test_both_pictures_are_made_and_neither_without_a_measurement() -> None:
    made = dict(report.plots(profiled.profile()[0]))
    assert set(made) == {"plots/batch_size_comparison.png", "plots/metrics_heatmap.png"}
    assert all(data.startswith(PNG) for data in made.values())
    assert dict(report.plots(failed())) == {}


def test_the_page_has_no_scripts_and_links_what_exists(
    page_files: dict[str, bytes], files: dict[str, bytes]
) -> None:
    text = page_files["report.html"].decode()
    assert "<script" not in text
    assert "Net&lt;script&gt;" in text  # a model's name is text
    assert " style=" not in text
    for name in ("latency-per-sample", "throughput", "memory", "speedup", "call", "spread"):
        for suffix in ("", "-narrow"):
            assert f"charts/{name}{suffix}.svg" in page_files
            assert f"charts/{name}{suffix}.svg" in text
    for name in files:
        assert f'href="{name}"' in text
    # The cost of a break is beside its line.
    assert "<mark>8  scale = x.sum().item()</mark>" in text
    assert "12.5 % of a call" in text


def test_a_page_without_a_measurement_says_why() -> None:
    made = dict(report.page(failed(), ()))
    text = made["report.html"].decode()
    assert "used 9 GiB of 8 GiB allowed" in text
    assert not any(name.startswith("charts/") for name in made)
    text = dict(report.figures(failed(), ()))["baseline_summary_report.txt"].decode()
    assert "nothing was measured" in text


def test_charts_are_documents_that_say_their_content(page_files: dict[str, bytes]) -> None:
    for name, data in page_files.items():
        if name.endswith(".svg"):
            root = ET.fromstring(data)
            said = root.findtext("{http://www.w3.org/2000/svg}desc")
            assert said
            assert "nan" not in data.decode()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "–"),
        (0.0000814, "0.081 ms"),
        (0.0124, "12.4 ms"),
        (1.25, "1,250 ms"),
        (22.4, "22.4 s"),
    ],
)
def test_times_are_worded_by_their_size(seconds: float | None, said: str) -> None:
    assert milliseconds(seconds) == said


def test_a_setting_fix_without_certainty_claims_nothing() -> None:
    assert "saves 1.00 ms a call" in report.setting_fix_words(profiled.SETTING_FIX)
    unsure = msgspec.structs.replace(profiled.SETTING_FIX, certain=False)
    assert "no saving that is certain" in report.setting_fix_words(unsure)
    wrong = msgspec.structs.replace(profiled.SETTING_FIX, matches=False)
    assert "the numbers differ" in report.setting_fix_words(wrong)
