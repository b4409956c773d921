"""A compiled Keras model as a job: the same formulas, the same accuracy, refusals by name."""

import json
import os
import sys

import pytest
import torch

import manyhands as mh
from manyhands.adapters.keras import KerasModule, _keras, _translated, accuracy, load_weights

os.environ.setdefault("KERAS_BACKEND", "torch")
pytest.importorskip("keras", reason="Keras is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Keras


@pytest.fixture(scope="module")
def keras():
    return _keras()


def model_of(keras, optimizer="adam", loss=None, layers=(), metrics=("accuracy",)):
    made = keras.Sequential(
        [keras.Input((4,)), *layers, keras.layers.Dense(3, activation="softmax")]
    )
    made.compile(optimizer, loss or "sparse_categorical_crossentropy", metrics=[*metrics])
    return made


def data_of(samples=48):
    inputs = torch.randn(samples, 4, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.TensorDataset(inputs, inputs[:, :3].argmax(1))


def job_of(make_model, **fields):
    fields = {"epochs": 2, **fields}
    return mh.adapters.keras.job(
        make_model, data=data_of(), validation=data_of(), global_batch=8, **fields
    )


OPTIMIZERS = {
    "sgd": lambda known: known.SGD(0.1),
    "momentum": lambda known: known.SGD(0.1, momentum=0.9),
    "nesterov": lambda known: known.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda known: known.Adam(0.05),
    "large epsilon": lambda known: known.Adam(0.05, beta_2=0.9, epsilon=0.1),
    "adam with decay": lambda known: known.Adam(0.05, weight_decay=0.1),
    "adamw": lambda known: known.AdamW(0.05, weight_decay=0.1, epsilon=1e-3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_have_the_formulas_of_keras(keras, name):
    optimizer = OPTIMIZERS[name](keras.optimizers)
    variable = keras.Variable(torch.linspace(-1, 1, 6))
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, 6))
    optimizer.build([variable])
    translated = _translated(keras, optimizer, [parameter])
    draws = torch.Generator().manual_seed(0)
    for _ in range(7):
        gradient = torch.randn(6, generator=draws) * 0.1
        optimizer.apply([gradient], [variable])
        parameter.grad = gradient.clone()
        translated.step()
        assert torch.allclose(variable.value, parameter, atol=2e-6)


def test_the_epsilon_of_torch_would_be_another(keras):
    optimizer = OPTIMIZERS["large epsilon"](keras.optimizers)
    own, theirs = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    first = _translated(keras, optimizer, [own])
    second = torch.optim.Adam([theirs], 0.05, betas=(0.9, 0.9), eps=0.1)
    for one in (own, theirs):
        one.grad = torch.full((1,), 0.1)
    first.step()
    second.step()
    assert abs(own - theirs).item() > 0.001


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (lambda known: known.RMSprop(), "the optimizer RMSprop has no translation"),
        (lambda known: known.SGD(0.1, weight_decay=0.1), r"SGD\(weight_decay=0.1\) of Keras"),
        (lambda known: known.Adam(clipnorm=1.0), r"Adam\(clipnorm=1.0\) has no translation: give"),
        (lambda known: known.Adam(amsgrad=True), r"Adam\(amsgrad=True\) has no translation"),
        (lambda known: known.Adam(use_ema=True), r"Adam\(use_ema=True\) has no translation"),
        (
            lambda known: known.Adam(known.schedules.ExponentialDecay(0.1, 10, 0.9)),
            "schedule ExponentialDecay has no translation: .*lr_schedule=",
        ),
    ],
)
def test_what_has_no_translation_is_refused_by_name(keras, optimizer, words):
    with pytest.raises(ValueError, match=words):
        job_of(lambda: model_of(keras, optimizer(keras.optimizers)))


def test_models_that_cannot_be_jobs_are_refused(keras):
    dense = keras.layers.Dense
    for make, words in [
        (lambda: torch.nn.Linear(4, 3), "must return a keras.Model, got Linear"),
        (lambda: keras.Sequential([keras.Input((4,)), dense(3)]), "is not compiled"),
        (lambda: model_of(keras, metrics=["mae"]), "the metric 'mae' has no translation"),
        (
            lambda: model_of(keras, layers=[dense(4, kernel_regularizer="l2")]),
            "has regularizers, which are not translated",
        ),
        (
            lambda: model_of(
                keras, loss=keras.losses.SparseCategoricalCrossentropy(reduction="sum")
            ),
            "reduction='sum', and a job's loss is a mean",
        ),
    ]:
        with pytest.raises(ValueError, match=words):
            job_of(make)

    def unbuilt():
        made = keras.Sequential([dense(3)])
        made.compile("adam", "mse")
        return made

    with pytest.raises(ValueError, match=r"has no variables yet: begin it with keras.Input"):
        job_of(unbuilt)
    with pytest.raises(TypeError, match="optimizer is what the Keras model was compiled with"):
        job_of(lambda: model_of(keras), optimizer=torch.optim.SGD)


def test_another_backend_is_refused(keras, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match=r"Keras has the backend 'jax': set .*KERAS_BACKEND"):
        job_of(lambda: model_of(keras))


def test_a_missing_keras_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'manyhands\[keras\]'"):
        job_of(lambda: None)


def test_names_do_not_depend_on_the_process(keras):
    names = [[*KerasModule(model_of(keras)).state_dict()] for _ in range(2)]
    assert names[0] == names[1] == ["0_kernel", "1_bias"]


def test_a_module_computes_what_the_model_does(keras):
    model = model_of(keras, layers=[keras.layers.BatchNormalization()])
    module = KerasModule(model)
    inputs = torch.randn(6, 4)
    assert torch.allclose(module.eval()(inputs), model(inputs, training=False))
    before = {name: one.clone() for name, one in module.named_buffers()}
    trained = module.train()(inputs)
    assert torch.allclose(trained, model(inputs, training=True))
    assert any(not torch.equal(before[name], one) for name, one in module.named_buffers())
    pairs = zip(model.non_trainable_variables, module.buffers(), strict=True)
    assert all(torch.allclose(variable.value, one) for variable, one in pairs)


def test_a_module_trains_parameters_that_replace_its_own(keras):
    # As a strategy does that divides parameters.
    module = KerasModule(model_of(keras))
    for name, parameter in [*module.named_parameters()]:
        setattr(module, name, torch.nn.Parameter(torch.zeros_like(parameter)))
    outputs = module(torch.randn(6, 4))
    assert torch.allclose(outputs, torch.full((6, 3), 1 / 3))
    outputs[:, 0].sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_accuracy_is_that_of_keras(keras):
    draws = torch.Generator().manual_seed(0)
    outputs = torch.rand(20, 3, generator=draws)
    classes = torch.randint(0, 3, (20,), generator=draws)
    ones = torch.nn.functional.one_hot(classes, 3).float()
    for metric, given, targets in [
        (keras.metrics.SparseCategoricalAccuracy(), outputs, classes),
        (keras.metrics.CategoricalAccuracy(), outputs, ones),
        (keras.metrics.BinaryAccuracy(), outputs[:, :1], (classes[:, None] > 0).float()),
    ]:
        metric.update_state(targets, given)
        assert accuracy(given, targets).mean().item() == pytest.approx(float(metric.result()))


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_run_is_the_run_of_keras(keras, tmp_path, name):
    def make_model():
        return model_of(keras, OPTIMIZERS[name](keras.optimizers))

    job = job_of(make_model)
    run = mh.simulate(job, "synchronous()", workers=2, output=tmp_path / "run")
    # Keras on the same batches, from the same start.
    from manyhands.parameters.initial.shard_values import make
    from manyhands.sampling.permutation import permutation

    module, _ = make(job)
    model = module.keras_model
    inputs, targets = job.data[:]
    for epoch in range(2):
        order = permutation(len(job.data), job.seed, epoch)
        for first in range(0, len(order), 8):
            chosen = order[first : first + 8]
            model.train_on_batch(inputs[chosen], targets[chosen])
    loaded = load_weights(run, make_model())
    for variable, wanted in zip(loaded.variables, model.variables, strict=False):
        assert torch.allclose(variable.value, wanted.value, atol=1e-5), variable.path
    assert run.metrics["accuracy"] == pytest.approx(
        accuracy(model(inputs), targets).mean().item(), abs=1e-6
    )
    with pytest.raises(ValueError, match="give a model as the job's make_model returns it"):
        load_weights(run, model_of(keras, layers=[keras.layers.Dense(4)]))


SCRIPT = """
    import json, os, sys
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    import torch
    import manyhands as mh

    strategy, workers, seed = map(json.loads, sys.argv[1:])

    class Scaled(keras.layers.Layer):
        # A custom layer: a dense one with a scale of its own for every output.

        def __init__(self, units, **options):
            super().__init__(**options)
            self.units = units

        def build(self, shape):
            self.kernel = self.add_weight(shape=(shape[-1], self.units), name="kernel")
            self.scale = self.add_weight(shape=(self.units,), initializer="ones", name="scale")

        def call(self, inputs):
            return keras.ops.relu(keras.ops.matmul(inputs, self.kernel) * self.scale)

    def make_model():
        model = keras.Sequential([
            keras.Input((28, 28)), keras.layers.Flatten(), Scaled(64),
            keras.layers.Dense(10, activation="softmax"),
        ])
        model.compile(
            keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"]
        )
        return model

    class Plain(torch.utils.data.Dataset):
        # Images without the dimension of channels.

        def __init__(self, split, samples):
            self.digits, self.samples = mh.data.mnist(split), samples

        def __len__(self):
            return self.samples

        def __getitem__(self, index):
            image, digit = self.digits[index]
            return image[0], digit

    def whole(data):
        return torch.utils.data.default_collate([data[index] for index in range(len(data))])

    job = mh.adapters.keras.job(
        make_model, data=Plain("train", 10_000), validation=Plain("test", 2_000),
        global_batch=64, epochs=2, seed=seed,
    )

    if __name__ == "__main__":
        if strategy:
            run = mh.train(job, strategy, workers=workers)
            print("accuracy", run.metrics["accuracy"])
            model = mh.adapters.keras.load_weights(run, make_model())
        else:
            keras.utils.set_random_seed(seed)
            model = make_model()
            model.fit(*whole(job.data), batch_size=64, epochs=2, verbose=0)
        print("evaluated", model.evaluate(*whole(job.validation), verbose=0)[1])
"""


def evaluated(run_script, strategy, workers, seed):
    started = run_script(SCRIPT, *map(json.dumps, (strategy, workers, seed)))
    assert started.finish(300) == 0, started.text()
    words = started.text().split()
    found = float(words[words.index("evaluated") + 1])
    if strategy:
        assert float(words[words.index("accuracy") + 1]) == pytest.approx(found, abs=1e-6)
    return found


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_mnist_is_learnt_as_by_fit(run_script):
    seeds = (0, 1, 2)
    fitted = [evaluated(run_script, None, 1, seed) for seed in seeds]
    spread = max(fitted) - min(fitted)
    print("fit", fitted)
    for strategy in ("allreduce()", "asynchronous()"):
        found = [evaluated(run_script, strategy, 2, seed) for seed in seeds]
        print(strategy, found)
        mean = sum(found) / 3
        assert min(fitted) - max(spread, 0.005) <= mean <= max(fitted) + max(spread, 0.005)
