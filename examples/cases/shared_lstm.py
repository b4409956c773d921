"""One LSTM encodes two messages of 140 characters on two workers; a third worker compares them.

    python examples/cases/shared_lstm.py

Do two passages have the same author? Author 0 writes Shakespeare's text, author 1 the same text in
ROT13. A passage is 140 × 256, one column per byte; the LSTM has 64 units. The script trains on one
worker and under `place`, and prints what each worker sends in a step. `--keep` stores the figures
in `results/shared_lstm.json`, and `--samples 256` is a short version.
"""

import argparse

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from case_results import keep, table
from torch import nn
from torch.utils.data import Dataset

import manyhands as mh

LENGTH, BYTES, UNITS = 140, 256, 64
PLACED = 'place(modules=["encoder on 0, 1", "merge on 2"])'
WAYS = [("single()", 1), (PLACED, 3)]
"""By strategy, the number of workers."""


class Passages(Dataset):
    """Pairs of passages `[2, 140, 256]`, and whether they have the same author."""

    def __init__(self, split: str) -> None:
        self._text = mh.data.tinyshakespeare(split, length=LENGTH)
        letters = self._text.vocabulary
        cipher = letters.translate(
            {ord(a) + i: ord(a) + (i + 13) % 26 for a in "aA" for i in range(26)}
        )
        self._bytes = torch.tensor([[ord(letter) for letter in told] for told in (letters, cipher)])

    def __len__(self) -> int:
        return len(self._text)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        authors = index % 2, index // 2 % 2
        windows = index, (7919 * index + 1) % len(self)
        codes = [
            self._bytes[author][self._text[window][0]]
            for author, window in zip(authors, windows, strict=True)
        ]
        pair = F.one_hot(torch.stack(codes), BYTES).to(torch.float32)
        return pair, torch.tensor(int(authors[0] == authors[1]))


class Merge(nn.Module):
    """Compares two codes `[N, 2 × units]` by their products and differences.

    A linear layer on the codes themselves would add what it finds in one to what it finds in the
    other, and so could not tell "both alike" from "one of each".
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * UNITS, 2)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """The logits: different, same."""
        first, second = codes.chunk(2, dim=-1)
        return self.linear(torch.cat([first * second, (first - second).abs()], dim=-1))


class SameAuthor(mh.models.SharedLSTM):
    """The shared LSTM with this merge."""

    def __init__(self) -> None:
        super().__init__(inputs=BYTES, hidden=UNITS)
        self.merge = Merge()


job = mh.Job(
    model=SameAuthor,
    optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-2),
    loss=F.cross_entropy,
    data=Passages("train"),
    validation=Passages("test"),
    metrics=["accuracy"],
    global_batch=32,
    epochs=1,
)


def figures(run: mh.Run) -> dict[str, object]:
    """What the tables and `results` have of a run."""
    (told,) = run.results.runs
    steps = -(-told.samples // job.global_batch)
    flows = [worker.totals.traffic.get("training/within") for worker in run.trace.workers]
    return {
        "strategy": told.strategy,
        "workers": told.workers,
        "samples": told.samples,
        "seconds": round(told.seconds, 1),
        "accuracy": told.validation["accuracy"].value,
        # A collective counts the same for all of its members: the sum is what was sent.
        "sent_per_step": [round(flow.payload_sent / steps) if flow else 0 for flow in flows],
    }


def messages(samples: float) -> list[tuple[int, str, int, str]]:
    """What each worker sends in a step under `place`: worker, what, bytes, to whom."""
    code, pair, logits = (round(4 * samples * width) for width in (UNITS, 2 * UNITS, 2))
    encoder = 4 * sum(one.numel() for one in SameAuthor().encoder.parameters())
    return [
        (0, "the code of the first passage", 2 * code, "1, 2"),
        (0, "its part of the sum of the encoder's gradients", encoder, "1"),
        (1, "the code of the second passage", 2 * code, "0, 2"),
        (1, "its part of the sum of the encoder's gradients", encoder, "0"),
        (2, "the logits", 2 * logits, "0, 1"),
        (2, "the gradient of both codes", 2 * pair, "0, 1"),
    ]


def printed(runs: list[dict]) -> str:
    """Two tables: the runs, and what each worker sends."""
    rows = []
    for run in runs:
        steps = -(-run["samples"] // job.global_batch)
        shapes = sum(size for _, _, size, _ in messages(run["samples"] / steps))
        rows.append(
            [
                f"`{run['strategy']}`",
                f"{run['workers']}",
                f"{run['accuracy'][-1]:.4f}",
                f"{sum(run['sent_per_step']):,} B",
                f"{shapes if run['workers'] > 1 else 0:,} B",
            ]
        )
    header = ["strategy", "workers", "accuracy", "sent per step, counted", "by the shapes"]
    each = [
        [f"{rank}", what, f"{size:,} B", to] for rank, what, size, to in messages(job.global_batch)
    ]
    sends = table(["worker", "sends", "bytes in a step of 32 pairs", "to"], each)
    return f"{table(header, rows)}\n\n{sends}"


def main() -> None:
    """Train in both ways, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, help="train on fewer samples than one epoch")
    parser.add_argument("--keep", action="store_true", help="store the figures in results")
    asked = parser.parse_args()
    runs = []
    for strategy, workers in WAYS:
        run = mh.train(job, strategy, workers=workers, samples=asked.samples)
        runs.append(figures(run))
    print(printed(runs))
    if asked.keep:
        print(f"figures: {keep('shared_lstm', {'runs': runs}).name}")


if __name__ == "__main__":
    main()
