"""The script whose job the tests compare strategies on."""

import textwrap
from pathlib import Path

TEXT = """
    import time
    import torch, torch.nn.functional as F
    import manyhands as mh

    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn({samples}, {width}, generator=generator)
    targets = (inputs.sum(1) > 0).long()
    data = torch.utils.data.TensorDataset(inputs, targets)


    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear({width}, {hidden})
            self.last = torch.nn.Linear({hidden}, 2)
            self.unused = torch.nn.Linear(2, 2) if {unused} else None

        def forward(self, inputs):
            time.sleep({device})  # as a process that waits for a device
            return self.last(torch.relu(self.first(inputs)))


    job = mh.Job(
        model=Model,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.05),
        loss=F.cross_entropy,
        data=data,
        validation=data if {validates} else None,
        global_batch=64,
        epochs={epochs},
        seed=5,
    )

    if __name__ == "__main__":
        {below}
"""


def write_script(
    folder: Path,
    *,
    samples: int = 1024,
    width: int = 64,
    hidden: int = 64,
    epochs: float = 1,
    validates: bool = True,
    unused: bool = False,
    device: float = 0,
    below: str = 'raise SystemExit("below the guard")',
) -> Path:
    """Write it with these settings; its path."""
    path = folder / "script.py"
    text = textwrap.dedent(TEXT).format(
        samples=samples,
        width=width,
        hidden=hidden,
        epochs=epochs,
        validates=validates,
        unused=unused,
        device=device,
        below=below,
    )
    path.write_text(text, encoding="utf-8")
    return path
