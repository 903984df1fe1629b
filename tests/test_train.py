"""Trainer and AdamW: numbers, threads, resuming, errors. test_cli_train.py has the command.

A trainer's run gives a record of the start, step 0, and a record of each step: a dict with its
numbers. An evaluation measures the held-out loss, "val_loss". The best model is that of the lowest.
"""

import json
import math
from dataclasses import fields, replace

import numpy as np
import pytest
from support.checks import refuses
from support.models import SMALL, random_model

import tiedgpt
from tiedgpt.checkpoints import safetensors
from tiedgpt.errors import ArgumentError, TiedGPTError
from tiedgpt.gpt2.ops import cross_entropy
from tiedgpt.training import loop
from tiedgpt.training.loop import Trainer
from tiedgpt.training.optimizer import AdamW, clip, learning_rate
from tiedgpt.training.settings import Settings
from tiedgpt.training.state import STATE

pytestmark = pytest.mark.usefixtures("one_thread")

UNTIED = replace(SMALL, tied=False)
WITHOUT_DROPOUT = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
# Settings of six steps, with evaluations at steps 0, 4 and 6.
TINY = Settings(steps=6, batch=5, context=11, warm_up=2, eval_every=4, threads=1)


def new_trainer(model=None, settings=TINY, only=None, size=400):
    """A trainer of a small model with dropout, on a random text of `size` tokens."""
    if model is None:
        model = random_model()
    tokens = np.random.default_rng(1).integers(0, SMALL.vocab_size, size)
    held_out = tokens[:45] // 2  # halved ids, so that it is a different text
    return Trainer(model, tokens, held_out, settings, only)


def train(trainer, until=None):
    """Train to the step `until`, or to the end. The records of this part, without their speed."""
    records = []
    for record in trainer.run():
        record.pop("tokens_per_s", None)
        records.append(record)
        if record["step"] == until:
            break
    return records


def assert_same_parameters(model, expected):
    assert model.config.head == expected.config.head
    np.testing.assert_equal(dict(model.parameters), dict(expected.parameters))


# Resuming


@pytest.mark.parametrize("stop", [1, 4])
@pytest.mark.parametrize(
    ("threads", "only"),
    [
        pytest.param(1, None, id="one-thread"),
        pytest.param(2, None, id="two-threads"),
        pytest.param(1, "head", id="only-head"),
    ],
)
def test_a_resumed_run_has_the_same_numbers(threads, only, stop, tmp_path):
    """A run in two parts has all losses and parameters of an unbroken run, also with dropout."""
    # The model is read from a file, so its arrays are mapped.
    tiedgpt.save_model(random_model(UNTIED), None, tmp_path / "start")
    model = tiedgpt.load_model(tmp_path / "start")
    settings = replace(TINY, threads=threads)
    unbroken = new_trainer(model, settings, only)  # it trains a copy of the model
    expected = train(unbroken)
    _start, *steps = expected  # a record of the start, and one of each step
    losses = {record["loss"] for record in steps}
    assert len(losses) == settings.steps, "two steps have the same loss"
    evaluated_steps = [record["step"] for record in expected if "val_loss" in record]
    assert evaluated_steps == [0, settings.eval_every, settings.steps]

    # The first part ends after step `stop`, and is saved.
    first = new_trainer(model, settings, only)
    records_of_first = 1 + stop  # of the start, and of each step
    assert train(first, until=stop) == expected[:records_of_first]
    first.save(tmp_path)

    # The second part begins there, and ends as the unbroken run did.
    second = Trainer.resume(tmp_path, first.tokens, first.held_out)
    assert second.settings == first.settings
    assert second.only == only
    assert second.best == first.best
    assert train(second) == expected[records_of_first:]
    assert second.best == unbroken.best
    assert_same_parameters(second.model, unbroken.model)
    assert_same_parameters(second.best_model(), unbroken.best_model())


def test_a_run_of_six_steps_is_resumed_with_nine(tmp_path):
    """Its learning rates are then those of a run of nine steps.

    The warm-up is at most a tenth of the steps, and a tenth of nine is less than one step.
    """
    numbers_of_numpy = replace(TINY, steps=np.int64(6), lr=np.float32(0.5))  # these are saved too
    first = new_trainer(settings=numbers_of_numpy)
    train(first)
    first.save(tmp_path)
    second = Trainer.resume(tmp_path, first.tokens, first.held_out, steps=9)
    assert second.settings == replace(first.settings, steps=9)
    rates = {record["step"]: record["lr"] for record in train(second)}
    # Records count the steps from 1, and learning_rate counts them from 0.
    assert rates == {
        7: learning_rate(6, steps=9, peak=0.5, warm_up=0),
        8: learning_rate(7, steps=9, peak=0.5, warm_up=0),
        9: learning_rate(8, steps=9, peak=0.5, warm_up=0),
    }


# A function that damages a saved state (JSON) or its arrays, and what the error says
DAMAGES = [
    pytest.param(lambda state, arrays: state.pop("step"), "KeyError", id="no-step"),
    pytest.param(lambda state, arrays: state.update(step=-1), ".*step -1", id="step-below-0"),
    pytest.param(lambda state, arrays: state.update(best=None), "TypeError", id="no-best"),
    pytest.param(lambda state, arrays: state.update(best=["1", 2]), ".*best", id="best-a-text"),
    pytest.param(
        lambda state, arrays: state["settings"].update(batch=0),
        ".*batch must be a whole number",
        id="batch-0",
    ),
    pytest.param(
        lambda state, arrays: state["settings"].update(x=0), "TypeError", id="unknown-setting"
    ),
    pytest.param(
        lambda state, arrays: arrays.pop("v"), "a tensor v of .* float32 numbers", id="no-v"
    ),
    pytest.param(
        lambda state, arrays: arrays.update(m=arrays["m"][:1]),
        "a tensor m of .* float32 numbers",
        id="m-too-short",
    ),
    pytest.param(
        lambda state, arrays: arrays.update(parameters=np.zeros(9)),
        "a tensor parameters of .* float32",
        id="parameters-float64",
    ),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_a_damaged_state_is_refused(tmp_path, damage, message):
    trainer = new_trainer()
    train(trainer, 1)
    trainer.save(tmp_path)
    tensors, metadata = safetensors.read_with_metadata(tmp_path / STATE)
    arrays = {name: tensor.read() for name, tensor in tensors.items()}
    state = json.loads(metadata["training"])

    damage(state, arrays)
    with (tmp_path / STATE).open("wb") as file:
        safetensors.write(file, arrays.items(), {"training": json.dumps(state)})

    wrong_json = " does not hold the state of a training: "
    wrong_tensor = ": expected "
    error = f"{STATE}({wrong_json}|{wrong_tensor}){message}"
    refuses(error, Trainer.resume, tmp_path, trainer.tokens, trainer.held_out)


# Batches and threads


@pytest.mark.parametrize("only", [None, "head"])
@pytest.mark.parametrize("threads", [2, 3, 5])
def test_several_threads_have_the_loss_and_the_gradient_of_one_thread(threads, only):
    model = random_model(replace(UNTIED, **WITHOUT_DROPOUT), dtype=np.float64)
    no_clipping = 1e9
    settings = replace(TINY, batch=6, steps=1, clip=no_clipping)
    with_one_thread = new_trainer(model, replace(settings, threads=1), only)
    with_several = new_trainer(model, replace(settings, threads=threads), only)
    _, expected = train(with_one_thread)  # the records of the start and of the step
    _, record = train(with_several)
    assert record["loss"] == pytest.approx(expected["loss"], rel=1e-13)
    # After one step, AdamW's m is a tenth of the gradient.
    expected_gradient = 10 * with_one_thread.optimizer.m
    gradient = 10 * with_several.optimizer.m
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-9, atol=1e-14)


def test_each_thread_has_a_different_seed_for_dropout_in_each_step(monkeypatch):
    steps = 3
    threads = 2
    trainer = new_trainer(settings=replace(TINY, steps=steps, threads=threads))
    new_generator = np.random.default_rng
    seeds = []

    def default_rng(seed):
        seeds.append(tuple(seed))
        return new_generator(seed)

    monkeypatch.setattr(np.random, "default_rng", default_rng)
    train(trainer)
    # Each step has one seed that draws the batch, and one for the dropout of each thread.
    assert len(seeds) == steps * (1 + threads)
    assert len(set(seeds)) == len(seeds)


def test_80_batches_are_all_different_and_hold_every_window_of_the_text(monkeypatch):
    """A window is `context` tokens and the token after them. A row of a batch is a window."""
    batches = []  # each [batch, context + 1]
    draw = Trainer._draw

    def recorded(self):
        batch = draw(self)
        batches.append(batch)
        return batch

    monkeypatch.setattr(Trainer, "_draw", recorded)
    text_size = 40
    train(new_trainer(settings=replace(TINY, steps=80), size=text_size))
    assert len(batches) == 80
    different_batches = {batch.tobytes() for batch in batches}
    assert len(different_batches) == 80
    different_windows = {window.tobytes() for batch in batches for window in batch}
    window_size = TINY.context + 1
    windows_of_text = text_size - window_size + 1
    assert len(different_windows) == windows_of_text


def test_the_loss_of_a_text_of_one_window_is_its_mean_cross_entropy():
    """The model reads all its tokens but the last, and predicts all but the first."""
    model = random_model(replace(SMALL, **WITHOUT_DROPOUT), dtype=np.float64)
    trainer = new_trainer(model, size=TINY.context + 1)
    losses = cross_entropy(model(trainer.tokens[:-1]), trainer.tokens[1:])
    _, record = train(trainer, until=1)
    assert record["loss"] == pytest.approx(losses.mean(), rel=1e-12)


# Evaluations


def test_an_evaluation_has_the_mean_loss_of_the_steps_since_the_last_one():
    trainer = new_trainer(settings=replace(TINY, eval_every=2))
    start, *records = train(trainer)
    losses = [record["loss"] for record in records]
    assert "loss" not in start
    assert [evaluation.get("loss") for evaluation in trainer.evaluations] == [
        None,  # the start
        pytest.approx((losses[0] + losses[1]) / 2),
        pytest.approx((losses[2] + losses[3]) / 2),
        pytest.approx((losses[4] + losses[5]) / 2),
    ]
    assert [evaluation["step"] for evaluation in trainer.evaluations] == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("steps", "eval_every"),
    [
        pytest.param(6, 1, id="fewer-steps-than-ten"),
        pytest.param(40, 4, id="40-steps"),
        pytest.param(100, 10, id="100-steps"),
    ],
)
def test_by_default_there_are_ten_evaluations_or_one_for_each_step(steps, eval_every):
    """An eval_every of 0 stands for the default."""
    trainer = new_trainer(settings=replace(TINY, steps=steps, eval_every=0))
    assert trainer.settings.eval_every == eval_every


# Errors


@pytest.mark.parametrize(
    ("config", "only", "message"),
    [
        pytest.param(
            SMALL,
            "head",
            "a tied model has no separate head to train: untie it first",
            id="head-of-a-tied-model",
        ),
        pytest.param(
            UNTIED, "body", "only must be \"head\" or None, got 'body'", id="only-unknown"
        ),
        pytest.param(
            replace(SMALL, vocab_size=50),
            None,
            "token id .* is outside the vocabulary of 50",
            id="text-of-another-vocabulary",
        ),
    ],
)
def test_arguments_that_do_not_fit_each_other(config, only, message):
    refuses(message, new_trainer, random_model(config), TINY, only, error=ArgumentError)


@pytest.mark.parametrize("name", [field.name for field in fields(Settings)])
def test_settings_below_their_range(name):
    with pytest.raises(ArgumentError, match=f"^{name} must be a .*number .*, got -1"):
        Settings(**{name: -1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("steps", 0, id="steps-0"),
        pytest.param("steps", 2**31, id="steps-too-high"),
        pytest.param("batch", 0, id="batch-0"),
        pytest.param("context", 0, id="context-0"),
        pytest.param("lr", math.inf, id="lr-infinite"),
        pytest.param("beta2", 1.0, id="beta2-1"),
    ],
)
def test_settings_out_of_their_range(name, value):
    with pytest.raises(ArgumentError, match=f"^{name} must be a .*number .*, got {value}"):
        Settings(**{name: value})


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_stops_the_training_before_its_step(norm, monkeypatch):
    trainer = new_trainer()
    train(trainer, until=2)
    before = trainer.flat.copy()  # all parameters
    scale = 1.0
    monkeypatch.setattr(loop, "clip", lambda gradient, limit: (norm, scale))
    message = f"step 3 has loss .*, norm of the gradient {norm}: the learning rate is too high"
    with pytest.raises(TiedGPTError, match=message):
        train(trainer)
    np.testing.assert_array_equal(trainer.flat, before)
    assert trainer.step == 2


# The learning rate, clipping and AdamW


def test_the_learning_rate_rises_and_then_falls_to_a_tenth():
    """It rises evenly from 2/11 at step 0 to 22/11 = 2 at step 10, and falls to 0.2 at step 100."""
    rates = [learning_rate(step, steps=100, peak=2.0, warm_up=10) for step in range(101)]
    assert rates[:11] == pytest.approx(2 / 11 * np.arange(1, 12))
    assert rates[10] == 2
    assert (np.diff(rates[10:]) < 0).all()
    half_way_down = (10 + 100) // 2  # a step
    assert rates[half_way_down] == pytest.approx((2 + 0.2) / 2)
    assert rates[100] == pytest.approx(0.2)


def test_the_learning_rate_of_a_single_step():
    assert learning_rate(0, steps=1, peak=2.0, warm_up=0) == 2


def test_by_default_a_long_gradient_is_clipped_to_a_norm_of_1():
    trainer = new_trainer()
    _, record = train(trainer, until=1)
    assert record["grad_norm"] > 2
    gradient = 10 * trainer.optimizer.m  # after one step, AdamW's m is a tenth of the gradient
    assert np.linalg.norm(gradient) == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize(
    ("limit", "scale"),
    [
        pytest.param(5.0, 1, id="not-longer"),
        pytest.param(0.5, pytest.approx(0.1, rel=1e-6), id="longer"),
        pytest.param(0.0, 0, id="limit-0"),
    ],
)
def test_clip_gives_the_norm_and_a_scale(limit, scale):
    """The norm of 3 and -4 is 5."""
    assert clip(np.array([3.0, -4.0]), limit) == (5, scale)


def test_three_steps_of_adamw_are_those_of_its_definition():
    """The six numbers of the matrix "weight" decay; the two numbers of "bias" do not."""
    rng = np.random.default_rng(0)
    flat = rng.standard_normal(8)
    shapes = {"weight": (2, 3), "bias": (2,)}
    adamw = AdamW(flat, shapes, betas=(0.9, 0.95), weight_decay=0.1)
    decay = np.array([0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0, 0])
    w = flat.copy()
    m = np.zeros(8)
    v = np.zeros(8)
    for t in (1, 2, 3):
        g = rng.standard_normal(8)
        adamw.step(2 * g, lr=0.01, scale=0.5)  # AdamW multiplies the gradient by `scale`: 0.5 * 2 g

        # The definition of Loshchilov and Hutter, with epsilon 1e-8.
        m = 0.9 * m + 0.1 * g
        v = 0.95 * v + 0.05 * g**2
        m_corrected = m / (1 - 0.9**t)
        v_corrected = v / (1 - 0.95**t)
        w = w * (1 - 0.01 * decay) - 0.01 * m_corrected / (np.sqrt(v_corrected) + 1e-8)
        np.testing.assert_allclose(flat, w, rtol=1e-12)
