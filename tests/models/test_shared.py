import torch

from manyhands.models import SharedLSTM


def test_one_lstm_encodes_both_sequences():
    model = SharedLSTM(inputs=5, hidden=4, outputs=3)
    pairs = torch.randn(7, 2, 6, 5)
    assert model(pairs).shape == (7, 3)
    assert torch.equal(model.encoder(pairs[:, 0]), model.encoder.lstm(pairs[:, 0])[0][:, -1])
    model(pairs[:, [0, 0]]).sum().backward()
    assert all(one.grad is not None for one in model.parameters())


def test_has_the_parameters_that_it_states():
    # torch gives an LSTM two biases, where Keras has one.
    count = sum(one.numel() for one in SharedLSTM().parameters())
    assert f"{count:,}" in SharedLSTM.__doc__
