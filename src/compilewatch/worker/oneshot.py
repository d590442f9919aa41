"""`python -m compilewatch.worker.oneshot inputs|reproduce`: one answer that is no `Result`.

A JSON request on standard input, a JSON answer on standard output. On failure: exit status 1 and
the reason as the last line of standard error.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from compilewatch.records import Mode, Request, Tier
from compilewatch.worker.example_inputs import make_inputs, summarize
from compilewatch.worker.example_inputs.files import inputs_to_toml
from compilewatch.worker.failures import one_line
from compilewatch.worker.fake_mode import InputAwareFakeMode
from compilewatch.worker.models import build_model
from compilewatch.worker.overrides import load_overrides
from compilewatch.worker.protocol import MadeInputs, Script
from compilewatch.worker.reproduce import script


def made_inputs(request: Request, tier: Tier) -> MadeInputs:
    """The example inputs of a request in one tier. `toml` is empty for fake ones."""
    fake_mode = InputAwareFakeMode() if tier is Tier.FAKE else None
    overrides = load_overrides(Path(request.overrides_dir) if request.overrides_dir else None)
    built = build_model(request, fake_mode, overrides)
    built.module.train(request.target.mode is Mode.TRAIN)
    inputs = make_inputs(built.module, built.config, request, overrides, fake_mode)
    return MadeInputs(
        strategy=inputs.strategy,
        tier=tier,
        inputs=summarize(inputs),
        toml=inputs_to_toml(inputs) if fake_mode is None else "",
    )


def answer(verb: str, request: Request) -> MadeInputs | Script:
    """Inputs come from the first tier that can make them, as in a sweep."""
    if verb == "reproduce":
        return Script(text=script(request))
    if request.tier is Tier.AUTO:
        try:
            return made_inputs(request, Tier.FAKE)
        except Exception:  # noqa: BLE001  (model code: the real tier is asked next)
            return made_inputs(request, Tier.REAL)
    return made_inputs(request, request.tier)


def main() -> None:
    # What model code prints must not end up in the answer.
    channel = os.dup(1)
    os.dup2(2, 1)
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    try:
        encoded = msgspec.json.encode(answer(sys.argv[1], request))
    except (Exception, SystemExit) as error:  # noqa: BLE001  (the worker's top)
        sys.stderr.write(f"\n{one_line(error)}\n")
        sys.exit(1)
    with os.fdopen(channel, "wb") as stream:
        stream.write(encoded)


if __name__ == "__main__":
    main()
