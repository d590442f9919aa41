from __future__ import annotations

import msgspec
import pytest

from compilewatch.extras.fixes.records import FixCost
from compilewatch.extras.fixes.text import cost_words


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (
            b'{"eager": 0.012, "without": 0.008, "with": 0.004}',
            "A call takes 12.0 ms in eager mode, 8.00 ms compiled without the fix, and 4.00 ms "
            "with it (2.00 times as fast): Inductor, one thread, medians.",
        ),
        (
            b'{"eager": 0.012, "without": null, "with": 0.004}',
            "A call takes 12.0 ms in eager mode, no time that could be measured compiled without "
            "the fix, and 4.00 ms with it: Inductor, one thread, medians.",
        ),
    ],
)
def test_what_a_script_prints_becomes_a_sentence(printed: bytes, expected: str) -> None:
    assert cost_words(msgspec.json.decode(printed, type=FixCost)) == expected
