"""ResNet50V2 on CIFAR-10, its photographs enlarged to 128×128: whole, sharded or in two stages.

    manyhands train examples/resnet.py --strategy "allreduce()" --workers 2
    manyhands train examples/resnet.py --strategy "fully_sharded()" --workers 2
    manyhands train examples/resnet.py --strategy "pipeline(microbatches=4)" --workers 2

It trains for 20 steps, which takes a minute on two cores: enough to see what each way costs, and
not to learn anything. Take out `samples` for the rest.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

import manyhands as mh


def model() -> nn.Module:
    """Photographs are enlarged where the model is, so that little is loaded."""
    return nn.Sequential(nn.Upsample(scale_factor=4), mh.models.ResNet50V2(classes=10))


job = mh.Job(
    model=model,
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
    loss=F.cross_entropy,
    data=mh.data.cifar10("train"),
    global_batch=16,
    samples=20 * 16,
)

if __name__ == "__main__":
    print(mh.train(job, "fully_sharded()", workers=2).summary())
