"""A training script with compilewatch's profiler, to copy from.

    python inputs/examples/train.py --profiler on --epochs 2 --steps-per-epoch 5
    compilewatch profile check outputs/profiles --analysis

A small transformer learns to repeat the token before last. With `--profiler off`, the losses are
the same to the last bit.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from torch import nn

from compilewatch.profiling import Profiler

TOKENS, WIDTH, LENGTH, BATCH = 64, 128, 32, 16


class Model(nn.Module):
    """Two layers of a causal transformer over a small vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded = self.embed(tokens) + self.positions.weight
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        logits: torch.Tensor = self.head(self.layers(embedded, mask=mask, is_causal=True))
        return logits


def batches(count: int, generator: torch.Generator) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield tokens with the answers: at each position, the token two before it."""
    for _ in range(count):
        tokens = torch.randint(TOKENS, (BATCH, LENGTH), generator=generator)
        yield tokens, tokens.roll(2, dims=1)


def train(*, epochs: int, steps_per_epoch: int, profiler: Profiler, compiled: bool) -> list[float]:
    """Train from a fixed seed and return the loss of each step."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = Model()
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses: list[float] = []
    with profiler:
        for epoch in range(epochs):
            profiler.epoch(epoch)
            for tokens, answers in profiler.data(batches(steps_per_epoch, generator)):
                with profiler.stage("zero_grad"):
                    optimizer.zero_grad()
                with profiler.stage("forward"):
                    logits = forward(tokens)
                with profiler.stage("loss"):
                    loss = nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten())
                with profiler.stage("backward"):
                    loss.backward()
                with profiler.stage("optimizer"):
                    optimizer.step()
                losses.append(loss.item())
                profiler.step(loss=losses[-1], samples=len(tokens))
            print(f"epoch {epoch}: loss {losses[-1]!r}", flush=True)
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profiler", choices=("on", "off"), default="on")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps-per-epoch", type=int, default=20)
    parser.add_argument("--compile", action="store_true", help="train with torch.compile")
    parser.add_argument("--out", default="outputs/profiles", help="folder for the profile")
    chosen = parser.parse_args()
    profiler = Profiler(
        chosen.out,
        enabled=chosen.profiler == "on",
        model="inputs/examples/train.py",
        target="inductor" if chosen.compile else "eager",
        settings={"epochs": chosen.epochs, "batch_size": BATCH},
    )
    train(
        epochs=chosen.epochs,
        steps_per_epoch=chosen.steps_per_epoch,
        profiler=profiler,
        compiled=chosen.compile,
    )
    if profiler.folder is not None:
        print(f"profile: {profiler.folder}")


if __name__ == "__main__":
    main()
