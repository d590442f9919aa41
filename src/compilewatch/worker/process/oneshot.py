"""`compilewatch.worker.process.oneshot inputs|reproduce|targets|models|VERB`: one call.

`inputs` and `reproduce` read a JSON request from standard input, `targets` describes the
environment itself, `models` lists the models of its libraries, and further verbs are calls of
extras. Each prints one JSON document to standard output. On failure, the exit status is 1, and the
last line of standard error is the reason.
"""

import contextlib
import os
import sys
from functools import partial
from typing import Any

import msgspec

from compilewatch import extras, plugins
from compilewatch.contract.failures import one_line
from compilewatch.contract.messages import MadeInputs, Readiness, Script, encoded
from compilewatch.contract.targets import TARGETS, declared, device_kinds
from compilewatch.errors import UnknownArgumentsError, WrongGuessError
from compilewatch.records import DeclaredDevice, Mode, Request, Tier
from compilewatch.worker import forked
from compilewatch.worker.targets import load_target


def made_inputs(request: Request, tier: Tier) -> MadeInputs:
    """The example inputs of a request in one tier. `toml` is empty for fake tensors."""
    from compilewatch.worker.example_inputs import make_inputs, summarize
    from compilewatch.worker.example_inputs.files import inputs_to_toml
    from compilewatch.worker.model.fake_mode import InputAwareFakeMode
    from compilewatch.worker.model.resolve import build_model
    from compilewatch.worker.phases import real_builder

    fake_mode = InputAwareFakeMode() if tier is Tier.FAKE else None
    built = build_model(request, fake_mode)
    built.module.train(request.target.mode is Mode.TRAIN)
    unknown: tuple[str, ...] = ()
    problem = ""
    try:
        inputs = make_inputs(built.module, request, fake_mode, real=real_builder(request))
    except UnknownArgumentsError as error:
        inputs, unknown = error.made, error.names
    except WrongGuessError as error:
        if fake_mode is not None and request.tier is Tier.AUTO:
            raise  # real tensors may show that the guess is right
        inputs, problem = error.made, error.problem
    return MadeInputs(
        strategy=inputs.strategy,
        tier=tier,
        inputs=summarize(inputs),
        toml=inputs_to_toml(inputs, unknown) if fake_mode is None else "",
        unknown=unknown,
        problem=problem,
    )


def readiness() -> Readiness:
    """What each target lacks in this environment."""
    missing: dict[str, str | None] = {}
    for name in TARGETS:
        try:
            missing[name] = load_target(name).unable()
        except Exception as error:  # noqa: BLE001  (a target that this torch cannot import)
            missing[name] = one_line(error)
    import torch._dynamo

    from compilewatch.worker.targets.dynamo.capture import has_nested_graph_breaks

    # A process can declare one device.
    reasons = {
        kind: forked.in_fork(partial(_undeclarable, declared(kind)), str) for kind in device_kinds()
    }
    return Readiness(
        missing=missing,
        backends=tuple(torch._dynamo.list_backends(exclude_tags=())),
        no_devices={kind: reason for kind, reason in reasons.items() if reason},
        nested_graph_breaks=has_nested_graph_breaks(),
    )


def _undeclarable(device: DeclaredDevice | None) -> str:
    from compilewatch.worker.device import DeviceUnavailableError, declare

    assert device is not None
    try:
        declare(device)
    except DeviceUnavailableError as error:
        return str(error)
    return ""


def call(verb: str) -> Any:
    """Run a verb, which may read a request from standard input; what it returns becomes JSON."""
    if verb == "targets":
        return readiness()
    if verb == "models":
        from compilewatch.worker.model.libraries import list_models

        return list_models()
    content = sys.stdin.buffer.read()
    if (reference := extras.CALLS.get(verb)) is not None:
        return plugins.load(reference)(content)
    request = msgspec.json.decode(content, type=Request)
    if verb == "reproduce":
        from compilewatch.worker.reproduce import script

        return Script(text=script(request))
    if request.tier is Tier.AUTO:
        with contextlib.suppress(Exception):  # of model code: the real tier is tried next
            return made_inputs(request, Tier.FAKE)
    return made_inputs(request, Tier.REAL if request.tier is Tier.AUTO else request.tier)


def main() -> None:
    forked.die_with(os.getppid())  # nobody else would end a model that hangs
    # The output of model code must not be mixed with the JSON document.
    channel = os.dup(1)
    os.dup2(2, 1)
    try:
        document = encoded(call(sys.argv[1]))
    except BaseException as error:  # noqa: BLE001  (the worker's top)
        sys.stderr.write(f"\n{one_line(error)}\n")
        sys.exit(1)
    with os.fdopen(channel, "wb") as stream:
        stream.write(document)


if __name__ == "__main__":
    main()
