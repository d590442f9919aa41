"""What the tabs of the monitor page show, whatever the kind of the run or profile."""

from __future__ import annotations

from dataclasses import dataclass, field

Row = dict[str, str | float]


@dataclass(frozen=True, kw_only=True)
class MonitorEntry:
    """A run, or a profile of training or inference: one line of the overview.

    `key` is its folder relative to `outputs/`. `done` of `total` requests or steps are there; of
    an inference profile, so many points were measured.
    """

    key: str
    kind: str
    title: str
    state: str
    started_at: str
    done: int | None = None
    total: int | None = None
    passed: int | None = None

    @property
    def label(self) -> str:
        return f"{self.started_at[:16].replace('T', ' ')} {self.kind} {self.title} ({self.state})"


@dataclass(frozen=True, kw_only=True)
class Alert:
    """What deserves attention, in the words of the terminal, and what to do."""

    level: str
    found: str
    advice: str


@dataclass(frozen=True, kw_only=True)
class Details:
    """All that the tabs show of one entry. A list that does not apply is empty.

    `changes` are the differences of a run from its baseline, the worst first. `left_out` names the
    step that is too slow to be drawn with the others. `batch_rows` have a row for each target and
    batch size, `tones` the colour of each target, `call_rows` the parts of a call and `break_rows`
    those of each graph break, in milliseconds.
    """

    entry: MonitorEntry
    figures: tuple[tuple[str, str], ...] = ()
    alerts: tuple[Alert, ...] = ()
    statuses: dict[str, int] = field(default_factory=dict)
    changes: tuple[Row, ...] = ()
    left_out: str = ""
    stage_rows: tuple[dict[str, float], ...] = ()
    shares: dict[str, float] = field(default_factory=dict)
    phase_seconds: dict[str, float] = field(default_factory=dict)
    slowest: tuple[tuple[str, float], ...] = ()
    memory_rows: tuple[dict[str, float], ...] = ()
    largest: tuple[tuple[str, float], ...] = ()
    operators: tuple[Row, ...] = ()
    explanation: tuple[str, ...] = ()
    tones: dict[str, str] = field(default_factory=dict)
    batch_rows: tuple[Row, ...] = ()
    call_rows: tuple[Row, ...] = ()
    break_rows: tuple[Row, ...] = ()
