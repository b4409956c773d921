"""What torch imports late: not at all where nothing is compiled, and as before where it is."""

import pytest

OPTIMIZERS = """
    import sys
    import torch
    from torch import nn

    def trained(make, steps=3):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = make(model.parameters())
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).square().sum().backward()
            optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        assert torch.is_grad_enabled()
        return torch.cat([one.detach().flatten() for one in model.parameters()])

    makers = [
        lambda these: torch.optim.SGD(these, lr=0.1, momentum=0.9),
        lambda these: torch.optim.Adam(these, lr=0.1),
        lambda these: torch.optim.AdamW(these, lr=0.1, foreach=True),
        lambda these: torch.optim.RMSprop(these, lr=0.1),
        lambda these: torch.optim.Adagrad(these, lr=0.1),
    ]
    import manyhands.engine
    without = [trained(make) for make in makers]
    # A step that can be differentiated is computed with gradients.
    weight = torch.ones(1, requires_grad=True)
    moved = weight.clone()
    moved.retain_grad()
    optimizer = torch.optim.SGD([moved], lr=0.5, differentiable=True)
    moved.grad = torch.ones(1) * weight
    optimizer.step()
    assert moved.grad_fn is not None
    assert "torch._dynamo" not in sys.modules

    import torch._dynamo
    for made, make in zip(without, makers):
        assert torch.equal(made, trained(make)), "the same numbers"
    zero_grad = torch.optim.Optimizer.zero_grad.__wrapped__
    assert getattr(zero_grad, "__dynamo_disable").__module__.startswith("torch"), "torch's own"
    # A compiled step is compiled as ever.
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(4, 3)).sum().backward()
    before = model.weight.detach().clone()
    torch.compile(optimizer.step, backend="eager")()
    assert not torch.equal(before, model.weight)
    print("equal")
"""

WORKERS = """
    import sys
    import torch
    import torch.nn.functional as F
    import manyhands as mh

    def say():
        print("loaded" if "torch._dynamo" in sys.modules else "without", flush=True)

    class Adam(torch.optim.Adam):
        def step(self, closure=None):
            say()
            return super().step(closure)

    def loss(outputs, targets):
        say()
        return F.cross_entropy(outputs, targets)

    job = mh.Job(
        model=lambda: mh.models.MLP(4, (3,), 2),
        optimizer=lambda module: Adam(module.parameters(), lr=0.01),
        loss=loss,
        data=torch.utils.data.TensorDataset(torch.ones(16, 4), torch.zeros(16).long()),
        global_batch=8,
        epochs=1,
    )
    if __name__ == "__main__":
        mh.train(job, sys.argv[1], workers=2, output=sys.argv[2])
        assert "torch._dynamo" not in sys.modules
"""


def test_optimizers_do_without_it_until_something_else_has_loaded_it(run_script):
    script = run_script(OPTIMIZERS)
    assert script.finish(120) == 0, script.text()
    assert script.text().strip().endswith("equal")


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("allreduce()", "without"),
        ("asynchronous()", "without"),
        pytest.param("fully_sharded()", "loaded", marks=pytest.mark.slow),
    ],
)
def test_workers_and_servers_load_it_only_where_it_is_used(run_script, tmp_path, strategy, said):
    script = run_script(WORKERS, strategy, str(tmp_path / "run"))
    assert script.finish(120) == 0, script.text()
    logs = [*(tmp_path / "run" / "logs").glob("*.out")]
    assert {word for log in logs for word in log.read_text("utf-8").split()} == {said}
    servers = [log for log in logs if log.name.startswith("server-") and log.read_text("utf-8")]
    assert len(servers) == (strategy == "asynchronous()"), "a server steps the optimizer"
