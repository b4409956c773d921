"""A small GPT on Shakespeare, whole or divided, by one word.

    manyhands train examples/gpt.py --strategy "fully_sharded()" --workers 2
    manyhands train examples/gpt.py --strategy "tensor(ways=2)" --workers 2
    manyhands train examples/gpt.py --strategy "context(ways=2)" --workers 2
    manyhands train examples/gpt.py --strategy "pipeline(schedule=zero_bubble)" --workers 2
    manyhands train examples/gpt.py --strategy "hybrid(shard=2, tensor=2)" --workers 4
    manyhands train examples/gpt.py --strategy "hybrid(tensor=2, pipeline=2)" --workers 4

All of them train the same model to the same loss; what differs is where it lies. Two copies of it,
on two workers each, that meet in every eighth step:

    manyhands train examples/gpt.py --strategy "hybrid(2, 2, outer=diloco(8))" --workers 4
"""

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh

job = mh.Job(
    model=lambda: mh.models.GPT(vocabulary=65, length=128, width=96, layers=4, heads=4),
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=3e-3),
    loss=F.cross_entropy,
    data=mh.data.tinyshakespeare("train", length=128),
    validation=mh.data.tinyshakespeare("test", length=128),
    global_batch=32,
    epochs=1,
    clip=1.0,
)

if __name__ == "__main__":
    print(mh.train(job, "fully_sharded()", workers=2).summary())
