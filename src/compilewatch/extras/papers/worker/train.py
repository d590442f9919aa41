"""Train a generated module briefly on synthetic data; runs inside of the sandbox.

Prints one line `METRICS: {...}` for each reported step. On a machine with torch_xla it uses the XLA
device, else the CPU, and says which. Imports torch and the standard library only.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

STEPS = 20
RATE = 1e-3


def device() -> tuple[Any, Any]:
    """The device, and what ends a step on it."""
    try:
        import torch_xla  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return torch.device("cpu"), lambda: None
    return torch_xla.device(), torch_xla.sync


def batch(sample: tuple[Any, ...], generator: torch.Generator) -> tuple[Any, ...]:
    """Random inputs like a sample: floats of its shape, integers within its range."""
    inputs: list[Any] = []
    for value in sample:
        if not isinstance(value, torch.Tensor):
            inputs.append(value)
        elif value.is_floating_point():
            inputs.append(torch.randn(value.shape, generator=generator, dtype=value.dtype))
        elif value.dtype is torch.bool:
            inputs.append(torch.randint(0, 2, value.shape, generator=generator).bool())
        else:
            high = int(value.max()) + 1 if value.numel() else 1
            drawn = torch.randint(0, max(high, 1), value.shape, generator=generator)
            inputs.append(drawn.to(value.dtype))
    return tuple(inputs)


def moved(values: tuple[Any, ...], to: Any) -> tuple[Any, ...]:
    return tuple(v.to(to) if isinstance(v, torch.Tensor) else v for v in values)


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import generated  # type: ignore[import-not-found,unused-ignore]

    torch.manual_seed(0)
    where, end_step = device()
    generator = torch.Generator().manual_seed(1)
    sample = generated.inputs()
    model = generated.model().to(where).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    begun = time.perf_counter()
    for step in range(1, STEPS + 1):
        inputs = moved(batch(sample, generator), where)
        optimizer.zero_grad()
        loss = generated.loss(model(*inputs), inputs)
        loss.backward()
        optimizer.step()
        end_step()
        if step == 1 or step % 5 == 0:
            value = float(loss.detach().cpu())
            seconds = time.perf_counter() - begun
            numbers = {"step": step, "training_loss": value, "seconds": round(seconds, 4)}
            print("METRICS: " + json.dumps(numbers), flush=True)
    print(f"trained {STEPS} steps on {where}, synthetic data", flush=True)


if __name__ == "__main__":
    main()
