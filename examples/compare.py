"""Which strategy is best for LeNet on MNIST, on this machine? A verdict, and a page of charts.

`python examples/compare.py` compares five strategies in less than ten minutes on two cores, and
leaves `comparisons/…/report.html`. Other strategies and other budgets:

    manyhands compare examples/compare.py --strategies "allreduce, easgd" --workers 4 --epochs 2
"""

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh

job = mh.Job(
    model=mh.models.LeNet,
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
    loss=F.cross_entropy,
    # A sixth of the data: several epochs, and so several points on the curves, in little time.
    data=torch.utils.data.Subset(mh.data.mnist("train"), range(10_000)),
    validation=mh.data.mnist("test"),
    metrics=["accuracy", "f1"],
    global_batch=256,
    epochs=4,
)

if __name__ == "__main__":
    compared = mh.compare(
        job, "single, allreduce, ssp(staleness=4), asynchronous, local_sgd(every=8)"
    )
    print(compared.summary())
