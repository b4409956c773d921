r"""A GPT of a billion parameters: what would it send, and how much memory would a worker need?

    manyhands forecast examples/gpt_1b.py --workers 1024 \
        --strategy "hybrid(data=16, shard=8, tensor=8)"

No worker is started, and the model is never made: one process plays a worker, on shapes alone.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh

job = mh.Job(
    model=lambda: mh.models.GPT.sized("1b"),
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=2e-4),
    loss=F.cross_entropy,
    data=mh.data.tinyshakespeare("train", length=1024),
    global_batch=1024,
    epochs=1,
)

if __name__ == "__main__":
    print(mh.train(job, "hybrid(data=16, shard=8, tensor=8)", workers=1024).summary())
