"""Calls of a worker that train a model, in an interpreter of its own."""

from __future__ import annotations

import subprocess

import msgspec

from compilewatch.api.worker_client import call_worker, last_line, oneshot
from compilewatch.environments import Environments
from compilewatch.errors import CompilerError, InputsError
from compilewatch.extras.profiles.train.messages import CapturedProfile, NeuronCapture
from compilewatch.records import Request, Result


def train_alone(environments: Environments, request: Request) -> Result:
    """Train for a profile in an interpreter of its own, which no server has warmed up.

    Raises InputsError if it does not end within the deadline of all phases.
    """
    try:
        return call_worker(environments, "train", request, Result)
    except subprocess.TimeoutExpired:
        seconds = request.deadlines.total_seconds
        raise InputsError(
            f"{request.model.name}: the training did not end within {seconds:g} s: raise "
            "deadlines.total_seconds or train fewer steps"
        ) from None


def capture_on_neuron(environments: Environments, order: NeuronCapture) -> CapturedProfile:
    """Run `neuron-profile` of `worker.process.oneshot`, with the variables of this shell.

    Raises CompilerError with the message of the failure.
    """
    chosen = environments.interpreter(order.request.target.environment)
    seconds = order.request.deadlines.total_seconds
    try:
        done = oneshot(chosen, "neuron-profile", msgspec.json.encode(order), seconds)
    except subprocess.TimeoutExpired:
        raise CompilerError(f"the capture did not end within {seconds:g} s") from None
    if done.returncode != 0:
        raise CompilerError(f"{order.request.model.name}: {last_line(done.stderr)}")
    return msgspec.json.decode(done.stdout, type=CapturedProfile)
