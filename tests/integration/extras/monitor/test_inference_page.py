"""Inference profiles on the monitor page, in Streamlit's own test client."""

from __future__ import annotations

import pytest

from tests.integration.extras.monitor.conftest import Pages

pytestmark = pytest.mark.monitor


# Only Streamlit itself rejects wrong rows, colours and arguments of a chart.
@pytest.mark.matrix
def test_the_page_draws_every_chart_of_an_inference_profile(pages: Pages) -> None:
    page = pages["inference"]
    assert page["exceptions"] == page["errors"] == []
    figures = page["metrics"]
    assert figures["best batch"] == "8 on inductor"
    assert "samples per second" in figures
    assert "No times yet." not in page["infos"]
    assert "No memory was measured." not in page["infos"]
