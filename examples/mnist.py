"""LeNet on MNIST, on as many workers as you like, under the strategy you name.

Start it with `python examples/mnist.py`, or with other settings by
`manyhands train examples/mnist.py --strategy "allreduce()" --workers 4`.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh

job = mh.Job(
    model=mh.models.LeNet,
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
    loss=F.cross_entropy,
    data=mh.data.mnist("train"),
    validation=mh.data.mnist("test"),
    metrics=["accuracy", "f1"],
    global_batch=256,
    epochs=1,
)

if __name__ == "__main__":
    print(mh.train(job, "allreduce()", workers=2).summary())
