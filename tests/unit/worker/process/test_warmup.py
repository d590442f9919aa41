from __future__ import annotations

import pytest

from compilewatch.worker.process import warmup


def test_every_server_formats_each_place_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the time would show that it does not, so that the call itself is watched."""
    calls: list[str] = []
    monkeypatch.setattr(warmup, "format_each_place_once", lambda: calls.append("formatted"))
    for name in ("import_modules", "_fix_verbosity", "_start_autograd"):
        monkeypatch.setattr(warmup, name, lambda *_: None)
    warmup.warm_up(["dynamo"], single=True)
    assert calls == ["formatted"]
