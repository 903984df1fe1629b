"""Trainer and AdamW: numbers, threads, saving and resuming, errors. test_cli_train.py: the command.

A trainer's run gives a record of the start, step 0, and a record of each step: a dict with its
numbers. An evaluation measures the held-out loss, "val_loss". The best model is that of the lowest.
"""

import json
import math
import re
import shutil
import zlib
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.checks import contents, refuses
from support.models import SMALL, random_model

import tiedgpt
from tiedgpt import GPT2
from tiedgpt.checkpoints import safetensors
from tiedgpt.errors import ArgumentError, TiedGPTError
from tiedgpt.evaluation import token_losses
from tiedgpt.gpt2.ops import cross_entropy
from tiedgpt.training import loop, optimizer, saving, start
from tiedgpt.training.loop import Trainer
from tiedgpt.training.optimizer import AdamW, clip, learning_rate
from tiedgpt.training.saving import LOG, STATE
from tiedgpt.training.start import Settings, Shape, new_model, split

pytestmark = pytest.mark.usefixtures("one_reading_thread")

UNTIED = replace(SMALL, tied=False)
WITHOUT_DROPOUT = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
# A step of it takes little time.
WITHOUT_LAYERS = replace(SMALL, n_layer=0)
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


def assert_same_training(trainer, expected):
    """All that a training has computed is the same: both models, AdamW's averages, the losses."""
    assert trainer.settings == expected.settings
    assert trainer.only == expected.only
    assert trainer.best == expected.best
    assert trainer.evaluations == expected.evaluations
    np.testing.assert_array_equal(trainer.optimizer.m, expected.optimizer.m)
    np.testing.assert_array_equal(trainer.optimizer.v, expected.optimizer.v)
    for ours, theirs in [
        (trainer.model, expected.model),
        (trainer.best_model(), expected.best_model()),
    ]:
        assert ours.config == theirs.config
        np.testing.assert_equal(dict(ours.parameters), dict(theirs.parameters))


# Saving and resuming


@pytest.mark.parametrize("stop", [pytest.param(1, marks=pytest.mark.slow), 4])
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
    losses = {record["loss"] for record in expected[1:]}
    assert len(losses) == settings.steps, "two steps have the same loss"

    first = new_trainer(model, settings, only)
    records_of_first = 1 + stop  # of the start, and of each step
    assert train(first, until=stop) == expected[:records_of_first]
    first.save(tmp_path / "out")
    second = Trainer.resume(tmp_path / "out", first.tokens, first.held_out)
    assert_same_training(second, first)
    assert second.saved_best == first.saved_best
    assert train(second) == expected[records_of_first:]
    assert_same_training(second, unbroken)


def run_and_save(trainer, directory):
    for _ in trainer.run_and_save(directory):
        pass


def test_a_training_is_saved_at_each_evaluation_alone(tmp_path, monkeypatch):
    """And its log has a line for each."""
    saved = []
    save = Trainer.save

    def recording_save(self, *arguments):
        saved.append(self.step)
        save(self, *arguments)

    monkeypatch.setattr(Trainer, "save", recording_save)
    trainer = new_trainer()
    run_and_save(trainer, tmp_path / "out")
    assert saved == [0, 4, 6]
    lines = (tmp_path / "out" / LOG).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == trainer.evaluations
    assert [json.loads(line)["step"] for line in lines] == [0, 4, 6]


def test_a_new_directory_has_the_files_that_are_given(tmp_path):
    trainer = new_trainer()
    for _ in trainer.run_and_save(tmp_path / "out", {"note.txt": b"a note"}):
        assert (tmp_path / "out" / "note.txt").read_bytes() == b"a note"


def test_progress_counts_the_held_out_tokens_of_each_evaluation(tmp_path):
    read = []
    trainer = new_trainer()
    for _ in trainer.run_and_save(tmp_path / "out", progress=read.append):
        pass
    assert sum(read) == len(trainer.evaluations) * trainer.held_out.size


def test_a_record_has_the_tokens_that_the_step_predicts_in_a_second(monkeypatch):
    clock = iter(range(0, 100, 2))  # two seconds for each step
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    _, *records = new_trainer().run()
    assert {record["tokens_per_s"] for record in records} == {TINY.batch * TINY.context / 2}


def test_a_training_that_is_stopped_is_saved_after_its_step(tmp_path):
    """As after the first Ctrl-C. It goes on with the numbers of an unbroken training."""
    unbroken = new_trainer()
    expected = train(unbroken)
    first = new_trainer()
    steps = []
    for record in first.run_and_save(tmp_path / "out", should_stop=lambda: first.step == 3):
        steps.append(record["step"])
    assert steps == [0, 1, 2, 3]
    second = Trainer.resume(tmp_path / "out", first.tokens, first.held_out)
    assert second.step == 3
    assert train(second) == expected[4:]
    assert_same_training(second, unbroken)


def test_a_training_that_was_saved_before_its_first_step_is_not_evaluated_again(tmp_path):
    trainer = new_trainer(random_model(WITHOUT_LAYERS))
    assert next(trainer.run_and_save(tmp_path / "out"))["step"] == 0
    log = (tmp_path / "out" / LOG).read_text(encoding="utf-8")
    assert json.loads(log) == trainer.evaluations[0]
    resumed = Trainer.resume(tmp_path / "out", trainer.tokens, trainer.held_out)
    assert next(resumed.run())["step"] == 1
    assert resumed.evaluations == trainer.evaluations


def test_a_resumed_training_may_go_on_in_another_directory(tmp_path):
    """Then it is saved at once: the next save may be far."""
    trainer = new_trainer()
    train(trainer, until=1)
    trainer.save(tmp_path / "one")
    for record in trainer.run_and_save(tmp_path / "two"):
        assert (record["step"], "val_loss" in record) == (2, False)
        break
    assert Trainer.resume(tmp_path / "two", trainer.tokens, trainer.held_out).step == 2


class Killed(BaseException):
    """Ends a process as SIGKILL does: nothing handles it."""


@pytest.fixture
def set_losses(monkeypatch):
    """set_losses(losses) -> models: from here on, an evaluation gives the loss {step: loss}.

    The models {step: model} are those that were evaluated.
    """
    evaluate = Trainer.evaluate
    models = {}

    def set_losses(losses):
        def evaluate_with_loss(self, *arguments):
            models[self.step] = deepcopy(self.model)
            loss = np.array([losses[self.step]])
            monkeypatch.setattr(loop, "measure_tokens", lambda *_: [loss])
            return evaluate(self, *arguments)

        monkeypatch.setattr(Trainer, "evaluate", evaluate_with_loss)
        return models

    return set_losses


def test_of_equal_losses_the_first_is_the_best(tmp_path, set_losses):
    """Without a better one, no save writes the model again."""
    set_losses({0: 1.0, 4: 1.0, 6: 2.0})
    trainer = new_trainer()
    models = set()
    for _ in trainer.run_and_save(tmp_path / "out"):
        models.add((tmp_path / "out" / "model.safetensors").stat().st_mtime_ns)
    assert trainer.best == loop.Best(1.0, 0)
    assert len(models) == 1


def test_the_mean_held_out_loss_is_computed_in_float64(monkeypatch):
    losses = np.array([2.0**24, 1.0], np.float32)
    monkeypatch.setattr(loop, "measure_tokens", lambda *_: [losses])
    assert new_trainer().evaluate() == 2**23 + 0.5


@pytest.mark.parametrize(
    "losses",
    [
        pytest.param({0: 3.0, 2: 4.0, 4: 2.0, 6: 1.0}, id="better-from-step-4"),
        pytest.param({0: 4.0, 2: 1.0, 4: 2.0, 6: 3.0}, id="best-at-step-2", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "save",
    [
        pytest.param(2, id="save-2", marks=pytest.mark.slow),
        pytest.param(3, id="save-3"),
        pytest.param(4, id="save-4", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", [LOG, STATE, "model.safetensors"])
def test_a_kill_between_two_replaced_files_loses_nothing(
    tmp_path, monkeypatch, set_losses, losses, save, name
):
    """In the second, third or fourth save, the process is killed before it replaces this file."""
    models = set_losses(losses)
    settings = replace(TINY, eval_every=2)
    unbroken = new_trainer(settings=settings)
    run_and_save(unbroken, tmp_path / "unbroken")

    saves = 1  # the first one writes a new directory
    replaced_file = saving.replaced_file

    def replace_or_die(path):
        nonlocal saves
        if path.name == LOG:  # it is the first file of a save
            saves += 1
        if saves == save and path.name == name:
            raise Killed
        return replaced_file(path)

    monkeypatch.setattr(saving, "replaced_file", replace_or_die)
    killed = new_trainer(settings=settings)
    with suppress(Killed):  # a save without a new best model writes none, so it is not killed
        run_and_save(killed, tmp_path / "out")
    assert tiedgpt.load_model(tmp_path / "out")
    monkeypatch.setattr(saving, "replaced_file", replaced_file)

    resumed = Trainer.resume(tmp_path / "out", killed.tokens, killed.held_out)
    best_model = models[resumed.best.step]
    np.testing.assert_equal(dict(resumed.best_model().parameters), dict(best_model.parameters))
    run_and_save(resumed, tmp_path / "out")
    assert_same_training(resumed, unbroken)
    assert contents(tmp_path / "out") == contents(tmp_path / "unbroken")


def test_resuming_removes_what_a_killed_process_left(tmp_path):
    trainer = new_trainer()
    run_and_save(trainer, tmp_path / "out")
    before = contents(tmp_path / "out")
    for name in (STATE, LOG, "model.safetensors"):
        (tmp_path / "out" / f".{name}.0123abcd.new").write_bytes(b"half")
    Trainer.resume(tmp_path / "out", trainer.tokens, trainer.held_out)
    assert contents(tmp_path / "out") == before


def test_a_directory_of_something_else_is_not_written_to(tmp_path):
    (tmp_path / "notes").touch()
    refuses("is not empty", run_and_save, new_trainer(), tmp_path)
    assert list(contents(tmp_path)) == ["notes"]


def test_a_run_of_six_steps_is_resumed_with_nine(tmp_path):
    """Its learning rates are then those of a run of nine steps.

    The warm-up is at most a tenth of the steps, and a tenth of nine is less than one step.
    """
    numbers_of_numpy = replace(TINY, steps=np.int64(6), lr=np.float32(0.5))  # these are saved too
    first = new_trainer(settings=numbers_of_numpy)
    train(first)
    first.save(tmp_path / "out")
    second = Trainer.resume(tmp_path / "out", first.tokens, first.held_out, steps=9)
    assert second.settings == replace(first.settings, steps=9)
    rates = {record["step"]: record["lr"] for record in train(second)}
    # Records count the steps from 1, and learning_rate counts them from 0.
    assert rates == {
        step: learning_rate(step - 1, steps=9, peak=0.5, warm_up=0) for step in (7, 8, 9)
    }


def test_what_cannot_be_resumed(tmp_path):
    trainer = new_trainer()
    train(trainer)
    trainer.save(tmp_path / "out")
    texts = (trainer.tokens, trainer.held_out)
    other_held_out = (trainer.tokens, trainer.tokens[:45])
    other_tokens = (trainer.tokens[::-1], trainer.held_out)
    error = ArgumentError
    refuses(
        "^steps must be at least the 6 that are done, got 5$",
        Trainer.resume,
        tmp_path / "out",
        *texts,
        5,
        error=error,
    )
    refuses("^steps must be .* got 0", Trainer.resume, tmp_path / "out", *texts, 0, error=error)
    for texts in (other_held_out, other_tokens):
        message = "/out was trained on another text: give the same text again$"
        refuses(message, Trainer.resume, tmp_path / "out", *texts, error=error)


@pytest.mark.parametrize("only", [None, "head"])
@pytest.mark.parametrize(
    "losses",
    [
        pytest.param({0: 3.0, 4: 2.0, 6: 4.0}, id="best-at-step-4"),
        # The parameters in the state are the best ones too, so a head alone could be written again.
        pytest.param({0: 3.0, 4: 2.0, 6: 1.0}, id="best-at-the-last-step"),
    ],
)
def test_another_model_in_the_directory_is_not_taken_for_the_best_one(
    tmp_path, set_losses, losses, only
):
    set_losses(losses)
    trainer = new_trainer(random_model(UNTIED), only=only)
    run_and_save(trainer, tmp_path / "out")
    model_file = tmp_path / "out" / "model.safetensors"
    saved = model_file.read_bytes()
    tiedgpt.save_model(random_model(UNTIED, seed=9), None, tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", model_file)
    before = contents(tmp_path / "out")
    resume = (Trainer.resume, tmp_path / "out", trainer.tokens, trainer.held_out)
    all_are_in_the_state = only is None and trainer.best.step == trainer.step
    if all_are_in_the_state:  # as after a kill between the state and the model
        Trainer.resume(*resume[1:])
        assert model_file.read_bytes() == saved
    else:
        saved_at = f"is not the model that this training saved at step {trainer.best.step}: "
        hint = "put that model back, or start a new training --from this one$"
        refuses(f"^{re.escape(str(model_file))} {saved_at}{hint}", *resume)
        assert contents(tmp_path / "out") == before


def test_the_checksum_of_a_text_is_that_of_its_ids_whatever_their_type():
    ids = np.array([3, 1, 2])
    expected = saving.checksum(ids)
    for dtype in ("<i4", ">i8", "<u2"):
        assert saving.checksum(ids.astype(dtype)) == expected
    for others in ([1, 3, 2], [3, 1], [3, 1, 2, 0], [3, 1, 4]):
        assert saving.checksum(np.array(others)) != expected
    # Older versions saved the checksum of these bytes.
    assert expected == zlib.crc32(b"\3\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0")


def test_each_number_of_a_model_counts_for_its_checksum():
    model = random_model(UNTIED)
    all_bytes = b"".join(array.astype("<f4").tobytes() for array in model.parameters.values())
    checksums = {saving.checksum_of_model(model)}
    assert checksums == {zlib.crc32(all_bytes)}, "as in older versions"
    for array in model.parameters.values():
        last = array.reshape(-1)[-1:]
        last[:] = np.nextafter(last, np.float32(9))  # the next float32
        checksums.add(saving.checksum_of_model(model))
    assert len(checksums) == 1 + len(model.parameters)


@pytest.mark.parametrize("field", [*fields(Settings), *fields(Shape)], ids=lambda field: field.name)
def test_what_the_flag_of_a_setting_says_of_it(field):
    """A setting without a help has no flag. Its number is a letter or a few."""
    if field.metadata["help"]:
        assert re.fullmatch("[A-Z]{1,3}", field.metadata["metavar"])
        assert not re.fullmatch("[A-Z]*", field.metadata["help"])


@pytest.mark.parametrize(
    ("name", "value"), [("n_head", 1), ("layer_norm_epsilon", 1e-3), ("resid_pdrop", 0.5)]
)
def test_another_config_json_is_not_taken_for_that_of_the_training(tmp_path, name, value):
    """All parameters fit it, and the model is another one."""
    trainer = new_trainer()
    run_and_save(trainer, tmp_path / "out")
    config_file = tmp_path / "out" / "config.json"
    config = json.loads(config_file.read_text())
    config_file.write_text(json.dumps({**config, name: value}))
    arguments = (tmp_path / "out", trainer.tokens, trainer.held_out)
    message = (
        f"^{re.escape(str(config_file))}: {name} is {value}, but this training began with "
        f"{config[name]}: write that value again$"
    )
    refuses(message, Trainer.resume, *arguments)
    config_file.write_text(json.dumps({**config, "a_field_of_yours": 1}))
    assert_same_training(Trainer.resume(*arguments), trainer)


def test_a_model_with_two_ends_of_a_text_is_resumed(tmp_path):
    """In Python they are a tuple, and in JSON a list."""
    trainer = new_trainer(random_model(replace(SMALL, eos_token_id=(1, 2))))
    train(trainer, until=1)
    trainer.save(tmp_path / "out")
    assert_same_training(
        Trainer.resume(tmp_path / "out", trainer.tokens, trainer.held_out), trainer
    )


def test_a_state_without_checksum_and_config_of_the_model_is_resumed(tmp_path):
    """Version 0.4 saved neither."""
    trainer = new_trainer()
    run_and_save(trainer, tmp_path / "out")
    change_state(tmp_path / "out", lambda state, arrays: (state.pop("model"), state.pop("config")))
    resumed = Trainer.resume(tmp_path / "out", trainer.tokens, trainer.held_out)
    assert_same_training(resumed, trainer)


def change_state(directory, change):
    """change(state, arrays) changes what is saved: JSON, and arrays by name."""
    tensors, metadata = safetensors.read_header(directory / STATE)
    arrays = {name: tensor.values(copy=True) for name, tensor in tensors.items()}
    state = json.loads(metadata["training"])
    change(state, arrays)
    with (directory / STATE).open("wb") as file:
        metadata = {"training": json.dumps(state)}
        safetensors.write(file, arrays.items(), metadata, exact=True)


# A function that damages a saved state (JSON) or its arrays, and what the error names
DAMAGES = [
    (lambda state, arrays: state.pop("step"), r"state of a training: KeyError\('step'\)$"),
    (lambda state, arrays: state.pop("only"), r"KeyError\('only'\)$"),
    (lambda state, arrays: state.update(step=-1), "step .*-1"),
    (lambda state, arrays: state.update(best=None), "state of a training"),
    (lambda state, arrays: state.update(best=["1", 2]), "best loss .*'1'"),
    (lambda state, arrays: state.update(best=[1.0, -2]), "best step .*-2"),
    (lambda state, arrays: state.update(losses=["1"]), "loss .*'1'"),
    (lambda state, arrays: state.update(losses=[1.0, math.nan]), "loss .*nan"),
    (lambda state, arrays: state.update(evaluations=[{"step": 0}]), "val_loss"),
    (lambda state, arrays: state["evaluations"].append({"val_loss": -1}), "val_loss .*-1"),
    (lambda state, arrays: state["settings"].update(batch=0), "batch"),
    (lambda state, arrays: state["settings"].update(x=0), "argument 'x'"),
    (lambda state, arrays: arrays.pop("v"), "expected a tensor v of 11278 float32 numbers$"),
    (lambda state, arrays: arrays.update(m=arrays["m"][:1]), "tensor m"),
    (lambda state, arrays: arrays.update(m=np.append(arrays["m"], arrays["m"][:1])), "tensor m"),
    (lambda state, arrays: arrays.update(parameters=np.zeros(9)), "tensor parameters"),
    (lambda state, arrays: arrays.update(v=arrays["v"].astype(np.float16)), "tensor v"),
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A training that was saved after its first step, and its directory."""
    directory = tmp_path_factory.mktemp("training") / "out"
    trainer = new_trainer()
    train(trainer, 1)
    trainer.save(directory)
    return trainer, directory


@pytest.mark.parametrize(("damage", "named"), DAMAGES)
def test_a_damaged_state_is_refused(tmp_path, saved, damage, named):
    trainer, directory = saved
    shutil.copytree(directory, tmp_path / "out")
    change_state(tmp_path / "out", damage)
    resume = (Trainer.resume, tmp_path / "out", trainer.tokens, trainer.held_out)
    refuses(f"{STATE}.*{named}", *resume)


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param(None, id="none"),
        pytest.param({"training": "{"}, id="half"),
        pytest.param({"training": "[" * 100_000}, id="nested"),
    ],
)
def test_a_state_that_is_no_json_is_refused(tmp_path, saved, metadata):
    trainer, directory = saved
    shutil.copytree(directory, tmp_path / "out")
    with (tmp_path / "out" / STATE).open("wb") as file:
        safetensors.write(file, trainer._vectors().items(), metadata)
    resume = (Trainer.resume, tmp_path / "out", trainer.tokens, trainer.held_out)
    refuses(f"{STATE} does not hold the state of a training: ", *resume)


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
    # Each step has one seed that draws the batch, and one for the dropout of each thread. They are
    # those of older versions.
    expected = []
    for step in range(steps):
        for number in range(1 + threads):
            expected.append((TINY.seed, step, 0, number))
    assert sorted(seeds) == expected


def test_the_pool_computes_the_gradient_and_updates_the_parameters(monkeypatch):
    """It has a thread for each core, and for each share of a batch if these are more."""
    thread_pool = loop.thread_pool
    sizes = []
    calls = []  # the functions that a pool runs

    @contextmanager
    def recording_pool(threads):
        sizes.append(threads)
        with thread_pool(threads) as pool_map:

            def recording_map(function, *arguments):
                calls.append(function)
                return pool_map(function, *arguments)

            yield recording_map

    monkeypatch.setattr(loop, "thread_pool", recording_pool)
    for cores, size in [(1, 2), (3, 3)]:
        monkeypatch.setattr(loop, "cores", lambda cores=cores: cores)
        calls.clear()
        settings = replace(TINY, steps=1, threads=2)
        train(new_trainer(random_model(WITHOUT_LAYERS), settings))
        assert sizes.pop() == size
        assert len(calls) == 2, "one for the gradient, one for the update"


def test_80_batches_are_all_different_and_hold_every_window_of_the_text(monkeypatch):
    """A window is `context` tokens and the token after them. A row of a batch is a window."""
    batches = []  # each [batch, context + 1]
    draw = Trainer._draw

    def recorded(self):
        batches.append(draw(self))
        return batches[-1]

    monkeypatch.setattr(Trainer, "_draw", recorded)
    text_size = 40
    settings = replace(TINY, steps=80, eval_every=80)
    train(new_trainer(random_model(WITHOUT_LAYERS), settings, size=text_size))
    assert len({batch.tobytes() for batch in batches}) == 80
    different_windows = {window.tobytes() for batch in batches for window in batch}
    window_size = TINY.context + 1
    assert len(different_windows) == text_size - window_size + 1


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


@pytest.mark.parametrize(("steps", "eval_every"), [(6, 1), (40, 4), (100, 10)])
def test_by_default_there_are_ten_evaluations_or_one_for_each_step(steps, eval_every):
    """An eval_every of 0 stands for the default."""
    trainer = new_trainer(settings=replace(TINY, steps=steps, eval_every=0))
    assert trainer.settings.eval_every == eval_every


@pytest.mark.parametrize(("steps", "warm_up", "rises"), [(40, 2, 2), (40, 9, 4), (9, 9, 0)])
def test_the_warm_up_takes_a_tenth_of_all_steps_at_most(steps, warm_up, rises):
    settings = replace(TINY, steps=steps, warm_up=warm_up, batch=1, eval_every=steps, lr=0.001)
    trainer = new_trainer(random_model(WITHOUT_LAYERS), settings)
    rates = [record["lr"] for record in train(trainer) if "lr" in record]
    assert rates.index(max(rates)) == rises


def test_an_evaluation_predicts_each_token_of_the_held_out_text_once():
    """With a stride of one token less than the context, in which the first is not predicted."""
    trainer = new_trainer()
    losses = token_losses(trainer.model, trainer.held_out, stride=SMALL.n_ctx - 1)
    assert losses.size == trainer.held_out.size - 1
    assert trainer.evaluate() == pytest.approx(losses.mean(), rel=1e-6)


@pytest.mark.parametrize(("threads", "batch", "used"), [(4, 3, 3), (2, 3, 2)])
def test_there_are_no_more_threads_than_sequences(threads, batch, used):
    trainer = new_trainer(settings=replace(TINY, threads=threads, batch=batch))
    assert trainer.settings.threads == used


def test_by_default_the_threads_are_those_that_suit_the_width(monkeypatch):
    """0 stands for the default."""
    monkeypatch.setattr(start, "training_threads", lambda width: {SMALL.n_embd: 3}[width])
    assert new_trainer(settings=replace(TINY, threads=0)).settings.threads == 3


# The start


def test_a_training_without_settings_is_that_of_older_versions():
    """So a command that was written down gives the same model."""
    assert asdict(Settings()) == {
        "steps": 2000,
        "batch": 32,
        "context": 128,
        "lr": 3e-3,
        "warm_up": 100,
        "weight_decay": 0.1,
        "beta2": 0.99,
        "clip": 1.0,
        "eval_every": 0,
        "seed": 1,
        "threads": 0,
    }
    assert asdict(Shape()) == {
        "n_layer": 4,
        "n_head": 4,
        "n_embd": 128,
        "vocab_size": 1024,
        "initializer_range": 0.02,
    }


def test_the_last_tenth_of_a_text_is_held_out():
    assert split("abcdefghijk") == ("abcdefghi", "jk")


def test_a_new_model_of_bytes_alone_has_no_token_that_begins_or_ends_a_text():
    shape = Shape(n_embd=8, n_layer=1, n_head=2, vocab_size=256)
    model, _ = new_model("low", shape, TINY, None)
    assert (model.config.bos_token_id, model.config.eos_token_id) == (None, None)


def test_a_new_model_that_is_too_large_is_refused_before_numbers_are_drawn(monkeypatch):
    monkeypatch.setattr(GPT2, "random", lambda *_: pytest.fail("draws random numbers"))
    with pytest.raises(MemoryError):
        new_model("low", Shape(n_embd=2**20, vocab_size=257), TINY, None)


@pytest.mark.parametrize("head", [None, "tied", "untied"])
def test_a_new_model(head):
    """Its vocabulary is learned, and <|endoftext|> begins and ends a text."""
    shape = Shape(n_embd=8, n_layer=1, n_head=2, vocab_size=300, initializer_range=0.3)
    model, tokenizer = new_model("low lower slow " * 9, shape, replace(TINY, seed=5), head)
    config = model.config
    assert config.vocab_size == tokenizer.vocab_size < 300
    assert config.bos_token_id == config.eos_token_id == tokenizer.eot_id
    assert config.n_ctx == TINY.context
    assert (config.embd_pdrop, config.resid_pdrop, config.attn_pdrop) == (0.1, 0.1, 0.0)
    assert config.tied == (head != "untied")
    tied = GPT2.random(replace(config, tied=True), 5)
    wte = tied.parameters["wte.weight"]
    if head == "untied":
        np.testing.assert_array_equal(model.W_U, tied.untie("random", 5).W_U)
    np.testing.assert_array_equal(model.parameters["wte.weight"], wte)
    assert 0.25 < np.std(wte) < 0.35


def test_a_context_above_the_models_is_refused():
    above = SMALL.n_ctx + 1
    message = f"^a context of {above} tokens exceeds the model's {SMALL.n_ctx}$"
    with pytest.raises(ArgumentError, match=message):
        new_trainer(settings=replace(TINY, context=above))
    new_trainer(settings=replace(TINY, context=SMALL.n_ctx))


def test_a_held_out_text_has_two_tokens():
    tokens = np.arange(40)
    message = (
        "^the held-out text must have at least 2 tokens, a context and the token after it, got 1$"
    )
    with pytest.raises(ArgumentError, match=message):
        Trainer(random_model(), tokens, tokens[:1], TINY)
    with pytest.raises(ArgumentError, match=f"outside the vocabulary of {SMALL.vocab_size}"):
        Trainer(random_model(), tokens, tokens + SMALL.vocab_size, TINY)
    Trainer(random_model(), tokens, tokens[:2], TINY)


# Errors


def test_a_text_has_a_context_and_the_token_after_it():
    """The context of a training is 11 tokens, less than the model's."""
    train(new_trainer(settings=replace(TINY, steps=1), size=12))
    for size in (10, 11):
        message = (
            "^the text to train on must have at least 12 tokens, a context and the token after it, "
            f"got {size}; give a longer text or a smaller context$"
        )
        with pytest.raises(ArgumentError, match=message):
            new_trainer(size=size)


@pytest.mark.parametrize(
    ("config", "only", "message"),
    [
        pytest.param(
            SMALL,
            "head",
            "^a tied model has no separate head to train: untie it first$",
            id="head-of-a-tied-model",
        ),
        pytest.param(
            UNTIED, "body", "^only must be \"head\" or None, got 'body'$", id="only-unknown"
        ),
        pytest.param(UNTIED, "", "only must be .*, got ''", id="only-empty"),
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


OUT_OF_RANGE = [(field.name, -1) for field in fields(Settings)] + [
    ("steps", 0),
    ("steps", 2**31),
    ("steps", 1.5),
    ("batch", 0),
    ("context", 1),  # no token of a window would be predicted
    ("lr", 0),
    ("lr", math.inf),
    ("lr", math.nan),
    ("beta2", 1.0),
]


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_settings_out_of_their_range(name, value):
    with pytest.raises(ArgumentError, match=f"^{name} must be a .*number .*, got {value}"):
        Settings(**{name: value})


LEAST = {
    "steps": 1,
    "batch": 1,
    "context": 2,
    "lr": 1e-30,
    "warm_up": 0,
    "weight_decay": 0,
    "beta2": 0,
    "clip": 0,
    "eval_every": 0,
    "seed": 0,
    "threads": 0,
}


def test_the_least_and_the_largest_settings_are_accepted():
    assert asdict(Settings(**LEAST)) == LEAST
    largest = {name: 2**31 - 1 for name in LEAST if name not in ("lr", "beta2")}
    assert asdict(Settings(**largest)) == {**asdict(Settings()), **largest}


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_stops_the_training_before_its_step(norm, monkeypatch):
    trainer = new_trainer()
    train(trainer, until=1)
    before = trainer.flat.copy()  # all parameters
    scale = 1.0
    monkeypatch.setattr(loop, "clip", lambda gradient, limit: (norm, scale))
    message = (
        rf"^step 2 has loss \d\.\d+, norm of the gradient {norm}: "
        "the learning rate is too high for this model$"
    )
    with pytest.raises(TiedGPTError, match=message):
        train(trainer)
    np.testing.assert_array_equal(trainer.flat, before)
    assert trainer.step == 1


@pytest.mark.parametrize(
    ("loss", "largest", "numbers"),
    [
        pytest.param(math.nan, 12.3456, "loss nan, norm of the gradient 12.35", id="loss"),
        pytest.param(1.234567, math.inf, "loss 1.235, norm of the gradient inf", id="gradient"),
    ],
)
def test_a_first_step_that_is_not_finite_is_not_made(monkeypatch, loss, largest, numbers):
    trainer = new_trainer(random_model(WITHOUT_LAYERS))
    gradient = np.zeros_like(trainer.flat)
    gradient[-1] = largest
    monkeypatch.setattr(trainer, "_loss_and_gradient", lambda pool_map: (loss, gradient))
    message = f"^step 1 has {numbers}: the model's weights are too large$"
    with pytest.raises(TiedGPTError, match=message):
        train(trainer)


@pytest.mark.parametrize("threads", [1, 2])
def test_blas_has_one_thread_beside_threads_of_python(threads, monkeypatch):
    steps = []
    one_blas_thread = loop.one_blas_thread
    monkeypatch.setattr(loop, "one_blas_thread", lambda: steps.append(1) or one_blas_thread())
    train(new_trainer(settings=replace(TINY, steps=2, threads=threads)))
    assert len(steps) == (2 if threads > 1 else 0)


def test_the_random_streams_and_the_betas_of_a_training():
    """Older versions drew the same numbers."""
    trainer = new_trainer(settings=replace(TINY, seed=5, beta2=0.5))
    assert trainer.optimizer.betas == (0.9, 0.5)
    assert new_trainer(settings=replace(TINY, weight_decay=0.3)).optimizer.weight_decay == 0.3
    trainer.step = 7
    for number in (0, 2):
        expected = np.random.default_rng([5, 7, 0, number]).integers(1 << 62)
        assert trainer._stream(number).integers(1 << 62) == expected


def with_nan(model, name, row):
    """The model with a nan in one row of a parameter."""
    array = model.parameters[name].copy()
    array[row] = np.nan
    return GPT2(model.config, {**model.parameters, name: array})


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_damaged_model_is_named_before_the_first_step(tmp_path):
    trainer = new_trainer(with_nan(random_model(), "ln_f.bias", row=3))
    message = "^the held-out loss after step 0 is nan: the model's checkpoint is damaged$"
    refuses(message, run_and_save, trainer, tmp_path / "out", error=TiedGPTError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_weights_that_are_too_large_are_named():
    model = random_model()
    model.parameters["wte.weight"] *= np.float32(1e30)
    with pytest.raises(TiedGPTError, match=r"the model's weights are too large"):
        train(new_trainer(model))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize(
    ("places", "step"),
    [
        pytest.param(slice(0, None, 2), 1, id="every-second-place-so-in-the-first-batch"),
        pytest.param(slice(40, 41), "[2-9]", id="one-place-so-in-a-later-batch"),
    ],
)
def test_a_damaged_embedding_is_named_at_the_step_that_first_reads_its_token(places, step):
    """The embedding of token 100 is damaged, which is at `places` of the training text alone.

    The model is untied, because in a tied model the damaged row would also be in W_U, and so in
    every loss.
    """
    tokens = np.random.default_rng(1).integers(0, 100, 60)
    held_out = np.random.default_rng(2).integers(0, 100, 20)
    tokens[places] = 100
    model = with_nan(random_model(UNTIED), "wte.weight", row=100)
    settings = Settings(steps=40, batch=2, context=5, eval_every=2, threads=1)
    message = f"^step {step} has loss nan, .*: the model's checkpoint is damaged$"
    with pytest.raises(TiedGPTError, match=message):
        train(Trainer(model, tokens, held_out, settings))


def needs_too_much_memory():
    np.empty((1 << 50, 8))


FAILURES = [
    pytest.param(needs_too_much_memory, "memory for a batch of 5", id="memory"),
    pytest.param(
        lambda: shutil.rmtree("out", ignore_errors=True),
        "cannot write to",
        id="a-directory-that-is-gone",
    ),
]


@pytest.mark.parametrize(("failure", "message"), FAILURES)
def test_an_error_in_mid_training_says_which_model_is_there(
    failure, message, monkeypatch, tmp_path
):
    """The failure comes before the second step. The directory has the model of step 0."""
    monkeypatch.chdir(tmp_path)
    trainer = new_trainer()
    records = trainer.run_and_save(Path("out"))
    next(records)
    next(records)
    draw = trainer._draw

    def fail():
        failure()
        return draw()

    monkeypatch.setattr(trainer, "_draw", fail)
    with pytest.raises(TiedGPTError, match=f"{message}.*; out holds the model of step 0$"):
        list(records)


def test_a_batch_that_does_not_fit_into_memory_is_named(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    model = random_model(replace(WITHOUT_LAYERS, n_ctx=1200))
    settings = replace(TINY, batch=1500, context=1000)
    trainer = new_trainer(model, settings, size=1001)
    records = trainer.run_and_save(Path("out"))
    next(records)
    monkeypatch.setattr(trainer, "_draw", needs_too_much_memory)
    message = (
        "^not enough memory for a batch of 1,500 sequences of 1,000 tokens; "
        "use a smaller --batch; out holds the model of step 0$"
    )
    with pytest.raises(TiedGPTError, match=message):
        next(records)


def test_a_held_out_loss_that_becomes_nan_is_named_with_its_step(monkeypatch, tmp_path, set_losses):
    """After a better step than the first."""
    set_losses({0: 3.0, 4: 2.0, 6: math.nan})
    monkeypatch.chdir(tmp_path)
    message = (
        "^the held-out loss after step 6 is nan: the learning rate is too high for this model; "
        "out holds the model of step 4$"
    )
    with pytest.raises(TiedGPTError, match=message):
        run_and_save(new_trainer(random_model(WITHOUT_LAYERS)), Path("out"))


# The learning rate, clipping and AdamW


def test_an_error_after_a_better_step_names_that_step(monkeypatch, tmp_path, set_losses):
    set_losses({0: 3.0, 4: 2.0})
    monkeypatch.chdir(tmp_path)
    trainer = new_trainer()
    records = trainer.run_and_save(Path("out"))
    while trainer.step < 4:
        next(records)
    monkeypatch.setattr(trainer, "_draw", needs_too_much_memory)
    with pytest.raises(TiedGPTError, match=r"; out holds the model of step 4$"):
        list(records)


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


@pytest.mark.parametrize("limit", [1.0, 0.25])
def test_a_long_gradient_is_clipped_to_a_norm_of_1_or_that_of_the_settings(limit):
    """1 is the default, which TINY has."""
    assert TINY.clip == 1.0
    trainer = new_trainer(settings=replace(TINY, clip=limit))
    _, record = train(trainer, until=1)
    assert record["grad_norm"] > 2
    gradient = 10 * trainer.optimizer.m  # after one step, AdamW's m is a tenth of the gradient
    assert np.linalg.norm(gradient) == pytest.approx(limit, rel=1e-4)


@pytest.mark.parametrize(
    ("limit", "scale"), [(5.0, 1), (0.5, pytest.approx(0.1, rel=1e-6)), (0.0, 0)]
)
def test_clip_gives_the_norm_and_a_scale(limit, scale):
    """The norm of 3 and -4 is 5."""
    assert clip(np.array([3.0, -4.0]), limit) == (5, scale)
    # A millionth is added to the norm, as in torch.
    assert clip(np.array([3e-6, -4e-6]), 1e-6) == pytest.approx((5e-6, 1 / 6))


@pytest.mark.parametrize("at_a_time", [3, optimizer.PARAMETERS_AT_A_TIME])
def test_three_steps_of_adamw_are_those_of_its_definition(monkeypatch, at_a_time):
    """The numbers of both matrices decay; the two numbers of "bias" do not."""
    monkeypatch.setattr(optimizer, "PARAMETERS_AT_A_TIME", at_a_time)
    rng = np.random.default_rng(0)
    flat = rng.standard_normal(8)
    shapes = {"wte": (2, 1), "bias": (2,), "wpe": (2, 2)}
    adamw = AdamW(flat, shapes, betas=(0.9, 0.95), weight_decay=0.1)
    decay = np.array([0.1, 0.1, 0, 0, 0.1, 0.1, 0.1, 0.1])
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
