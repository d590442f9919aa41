"""Numbers out of what training code prints, which may be anything."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilewatch.extras.executor.protocol import (
    MOST_LINE_BYTES,
    MOST_NAMES,
    MOST_POINTS,
    read_points,
)


def points(text: str) -> list[tuple[int | None, dict[str, float]]]:
    return [(point.step, point.values) for point in read_points(text.encode())[0]]


def test_marked_lines_are_read() -> None:
    text = """
starting
METRICS: {"epoch": 1, "training_loss": 0.5, "steps_done": 12}
  METRICS: {"step": 7, "test_accuracy": 0.9}
METRICS: {"training_loss": 0.25}
"""
    assert points(text) == [
        (1, {"training_loss": 0.5, "steps_done": 12.0}),
        (7, {"test_accuracy": 0.9}),
        (None, {"training_loss": 0.25}),
    ]


def test_lines_for_people_are_read_where_none_is_marked() -> None:
    text = """Epoch 1/2, Loss: 0.7
Epoch [2/2] Training Loss: 3.5e-1
Validation Accuracy: 81.5%  Test Accuracy: 80%
"""
    assert points(text) == [
        (1, {"training_loss": 0.7}),
        (2, {"training_loss": 0.35}),
        (2, {"validation_accuracy": 81.5, "test_accuracy": 80.0}),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "METRICS: nothing",
        "METRICS: [1]",
        'METRICS: {"a": NaN}',
        'METRICS: {"a": 1e999}',
        'METRICS: {"a": true}',
        'METRICS: {"a": "1"}',
        'METRICS: {"a b": 1}',
        'METRICS: {"' + "a" * 100 + '": 1}',
        "METRICS: " + "[" * 5000,
        'METRICS: {"a": ' + "1" * MOST_LINE_BYTES + "}",
    ],
)
def test_what_is_not_a_finite_number_loses_itself_only(line: str) -> None:
    text = f'METRICS: {{"good": 1}}\n{line}\nMETRICS: {{"good": 2}}\n'
    points, left_out = read_points(text.encode())
    assert [point.values for point in points] == [{"good": 1.0}, {"good": 2.0}]
    assert left_out == 1


def test_names_and_points_are_bounded() -> None:
    many = "".join(f'METRICS: {{"name_{n}": 1}}\n' for n in range(MOST_NAMES + 5))
    assert len(points(many)) == MOST_NAMES
    found, left_out = read_points(b'METRICS: {"a": 1}\n' * (MOST_POINTS + 3))
    assert (len(found), left_out) == (MOST_POINTS, 3)


BEGINNINGS = (b"", b"METRICS: ", b'METRICS: {"a": ', b"Epoch 1/")


@given(st.binary(max_size=300), st.sampled_from(BEGINNINGS))
def test_any_output_can_be_read(data: bytes, beginning: bytes) -> None:
    for point in read_points(beginning + data)[0]:
        assert all(map(math.isfinite, point.values.values()))
