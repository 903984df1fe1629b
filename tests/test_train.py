"""Training: interrupted and resumed runs, threads, the files that are written, and errors."""

import io
import json
import math
import os
import select
import signal
import struct
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from conftest import SMALL, assert_one_error_line, random_model

import tiedgpt
from tiedgpt import cli
from tiedgpt.checkpoints import safetensors
from tiedgpt.cli.train import loss_curve
from tiedgpt.errors import ArgumentError, CheckpointError, TiedGPTError
from tiedgpt.fast import blas, threads
from tiedgpt.ops import cross_entropy
from tiedgpt.training import loop
from tiedgpt.training.loop import LOG, STATE, Settings, Trainer
from tiedgpt.training.optimizer import AdamW, clip, learning_rate

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX's signals")
UNTIED = replace(SMALL, tied=False)
STILL = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}  # no dropout
TINY = Settings(steps=6, batch=5, context=11, warm_up=2, eval_every=4, threads=1)
TEXT = "".join(f"Each of {n} tokens was read {n * n} times, and not once too often.\n" for n in range(99))


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """One BLAS thread: on a busy machine, two that wait for each other are very slow.

    And one reading thread: held-out losses equal those of subprocesses to the bit only if as many share them.
    """
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # of subprocesses
    monkeypatch.setattr(threads, "reading_threads", lambda: 1)
    with blas.one_blas_thread():
        yield


def trainer(model=None, settings=TINY, only=None, size=400):
    """A trainer on random text, of a small model with dropout."""
    tokens = np.random.default_rng(1).integers(0, SMALL.vocab_size, size)
    return Trainer(model or random_model(), tokens, tokens[:45] // 2, settings, only)


def train(trainer, until=None):
    """The records of a run up to a step, without what they say about time."""
    records = []
    for record in trainer.run():
        records.append({name: value for name, value in record.items() if name != "tokens_per_s"})
        if record["step"] == until:
            break
    return records


# the trainer


@pytest.mark.parametrize("stop", [1, 4])
@pytest.mark.parametrize(
    ("changes", "only"),
    [({"threads": 1}, None), ({"threads": 2}, None), ({"threads": 2, "accumulate": 3}, None), ({}, "head")],
)
def test_a_resumed_run_has_the_same_numbers(changes, only, stop, tmp_path):
    """With dropout: every loss and every parameter of a run in two parts is an unbroken run's, to the bit."""
    tiedgpt.save_model(random_model(UNTIED), None, tmp_path / "start")
    settings, model = replace(TINY, **changes), tiedgpt.load_model(tmp_path / "start")
    unbroken = trainer(model, settings, only)
    expected = train(unbroken)
    assert len({record["loss"] for record in expected[1:]}) == 6
    assert [record["step"] for record in expected if "val_loss" in record] == [0, 4, 6]

    first = trainer(model, settings, only)
    assert train(first, stop) == expected[: stop + 1]
    first.save(tmp_path)
    second = Trainer.resume(tmp_path, first.tokens, first.held_out)
    assert (second.settings, second.only, second.best) == (first.settings, only, first.best)
    assert train(second) == expected[stop + 1 :]
    for name, array in unbroken.model.parameters.items():
        np.testing.assert_array_equal(second.model.parameters[name], array, err_msg=name)
    assert second.best == unbroken.best
    for name, array in unbroken.best_model().parameters.items():
        np.testing.assert_array_equal(second.best_model().parameters[name], array, err_msg=name)


def test_settings_may_be_numpy_numbers(tmp_path):
    one = trainer(settings=replace(TINY, steps=np.int64(6), lr=np.float32(0.5)))
    train(one, 1)
    one.save(tmp_path)
    assert Trainer.resume(tmp_path, one.tokens, one.held_out).settings == one.settings


def test_resume_with_more_steps(tmp_path):
    first = trainer()
    train(first)
    first.save(tmp_path)
    second = Trainer.resume(tmp_path, first.tokens, first.held_out, steps=9)
    records = train(second)
    assert [record["step"] for record in records] == [7, 8, 9]
    assert records[0]["lr"] == learning_rate(6, 9, TINY.lr, 0)


def gradient(settings, model, only=None):
    """The loss and the gradient of the first step; m is then 0.1 times the gradient."""
    one = trainer(model, replace(settings, steps=1, clip=1e9), only)
    return train(one)[1]["loss"], one.optimizer.m * 10


@pytest.mark.parametrize("only", [None, "head"])
@pytest.mark.parametrize(
    "parts",
    [*({"threads": n} for n in (2, 3, 5)), *({"batch": 2, "accumulate": 3, "threads": n} for n in (1, 2))],
)
def test_the_parts_of_a_batch_add_up(parts, only, monkeypatch):
    """Shares of threads, and batches whose gradients are accumulated."""
    model = random_model(replace(UNTIED, **STILL), dtype=np.float64)
    rows = np.random.default_rng(3).integers(0, SMALL.vocab_size, (6, TINY.context + 1))
    monkeypatch.setattr(Trainer, "_draw", lambda self, micro: rows[2 * micro :][: self.settings.batch])
    loss, whole = gradient(replace(TINY, batch=6), model, only)
    parts_loss, added = gradient(replace(TINY, **{"batch": 6} | parts), model, only)
    assert parts_loss == pytest.approx(loss, rel=1e-13)
    np.testing.assert_allclose(added, whole, rtol=1e-9, atol=1e-14)


def test_a_text_of_one_window_is_read_whole():
    """Its first token is only read and its last one only predicted."""
    model = random_model(replace(SMALL, **STILL), dtype=np.float64)
    one = trainer(model, size=TINY.context + 1)
    expected = cross_entropy(model(one.tokens[:-1]), one.tokens[1:]).mean()
    assert train(one, 1)[1]["loss"] == pytest.approx(expected, rel=1e-12)


def test_batches_come_from_all_over_the_text_and_are_never_the_same():
    seen = []
    one = trainer(settings=replace(TINY, steps=40, accumulate=2), size=40)
    draw = one._draw
    one._draw = lambda micro: seen.append(draw(micro)) or seen[-1]
    train(one)
    assert len({rows.tobytes() for rows in seen}) == len(seen) == 80
    starts = {rows.tobytes() for batch in seen for rows in batch}
    assert len(starts) == 40 - TINY.context


def test_held_out_loss_is_the_score_of_the_text():
    one = trainer()
    read = []
    expected = tiedgpt.score(one.model, tiedgpt.Tokenizer([]), one.held_out, stride=SMALL.n_ctx - 1).nll
    assert one.evaluate(read.append) == pytest.approx(expected, rel=1e-12)
    assert sum(read) == len(one.held_out)


def test_shares_and_micro_batches_have_dropout_of_their_own(monkeypatch):
    one, seeds = trainer(settings=replace(TINY, steps=3, threads=2, accumulate=2)), []
    generator = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed: seeds.append(tuple(seed)) or generator(seed))
    train(one)
    assert len(set(seeds)) == len(seeds) == 3 * 2 * (1 + 2)


def test_the_model_given_is_not_changed():
    model = random_model()
    before = {name: array.copy() for name, array in model.parameters.items()}
    one = trainer(model)
    train(one)
    for name, array in model.parameters.items():
        np.testing.assert_array_equal(array, before[name])
        assert not np.array_equal(one.model.parameters[name], array), f"{name} was not trained"


@pytest.mark.parametrize(
    ("config", "settings", "only", "size", "message"),
    [
        (SMALL, {}, "head", 400, "a tied model has no separate head to train: untie it first"),
        (UNTIED, {}, "body", 400, "only must be \"head\" or None, got 'body'"),
        (SMALL, {"context": 32}, None, 400, "a context of 32 tokens is more than the model's 31"),
        (SMALL, {}, None, 11, r"the text to train on has 11 tokens; expected at least 12, a context"),
        (replace(SMALL, vocab_size=50), {}, None, 400, "token id .* is outside the vocabulary of 50"),
    ],
)
def test_arguments_that_do_not_fit_each_other(config, settings, only, size, message):
    with pytest.raises(ArgumentError, match=message):
        trainer(random_model(config), replace(TINY, **settings), only, size)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be a whole number from 1 to 2147483647, got 0"),
        ({"batch": 2.0}, "batch must be a whole number from 1 to 2147483647, got 2.0"),
        ({"threads": -1}, "threads must be a whole number from 0 to 2147483647, got -1"),
        ({"seed": True}, "seed must be a whole number from 0 to 2147483647, got True"),
        ({"steps": 10**400}, "steps must be a whole number from 1 to 2147483647, got 1000"),
        ({"lr": math.nan}, "lr must be a number of at least 0, got nan"),
        ({"lr": math.inf}, "lr must be a number of at least 0, got inf"),
        ({"clip": "1"}, "clip must be a number of at least 0, got '1'"),
        ({"beta2": 1.0}, "beta2 must be a number of at least 0 and below 1, got 1.0"),
    ],
)
def test_settings_that_make_no_sense(changes, message):
    with pytest.raises(ArgumentError, match=message):
        Settings(**changes)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_stops_before_the_step(bad, monkeypatch):
    one = trainer()
    train(one, 2)
    before = one.flat.copy()
    monkeypatch.setattr(loop, "clip", lambda gradient, limit: (bad, 1.0))
    with pytest.raises(TiedGPTError, match=f"loss of step 3 is .* norm {bad}: the learning rate is too high"):
        train(one)
    np.testing.assert_array_equal(one.flat, before)
    assert one.step == 2


def damaged(path, change):
    """Write a trainer's state anew, with its JSON and tensors as `change` leaves them."""
    tensors, metadata = safetensors.read_with_metadata(path)
    arrays = {name: tensor.read() for name, tensor in tensors.items()}
    state = json.loads(metadata["training"])
    change(state, arrays)
    with path.open("wb") as file:
        safetensors.write(file, arrays.items(), {"training": json.dumps(state)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state, _: state.clear(), "does not hold the state of a training: KeyError"),
        (lambda state, _: state.pop("step"), "does not hold the state of a training: KeyError"),
        (lambda state, _: state.update(step=-1), "does not hold the state of a training: .*step -1"),
        (lambda state, _: state.update(step=math.inf), "does not hold the state of a training: .*step inf"),
        (lambda state, _: state.update(best=None), "does not hold the state of a training: TypeError"),
        (lambda state, _: state.update(best=["1", 2]), "does not hold the state of a training: .*best"),
        (lambda state, _: state["settings"].update(batch=0), "not hold .*batch must be a whole number"),
        (lambda state, _: state["settings"].update(x=0), "does not hold the state of a training: TypeError"),
        (lambda _, arrays: arrays.pop("v"), "expected a tensor v of .* float32 numbers"),
        (lambda _, arrays: arrays.update(m=arrays["m"][:1]), "expected a tensor m of .* float32 numbers"),
        (lambda _, arrays: arrays.update(parameters=np.zeros(9)), "expected a tensor parameters of .* float"),
    ],
)
def test_a_damaged_state_is_refused(change, message, tmp_path):
    one = trainer()
    train(one, 1)
    one.save(tmp_path)
    damaged(tmp_path / STATE, change)
    with pytest.raises(CheckpointError, match=f"{STATE}.* {message}"):
        Trainer.resume(tmp_path, one.tokens, one.held_out)


# its parts


def test_the_learning_rate_schedule():
    rates = [learning_rate(step, 100, 2.0, 10) for step in range(101)]
    assert rates[0] == pytest.approx(2 / 11)
    assert np.diff(rates[:11]) == pytest.approx([2 / 11] * 10)
    assert max(rates) == rates[10] == 2
    assert rates[55] == pytest.approx(0.2 + 0.9)  # half way down: between the peak and a tenth of it
    assert rates[100] == pytest.approx(0.2)
    assert (np.diff(rates[10:]) < 0).all()
    assert learning_rate(0, 1, 2.0, 0) == 2


def test_a_gradient_is_clipped_to_a_norm_of_1_by_default():
    one = trainer()
    assert train(one, 1)[1]["grad_norm"] > 2
    assert np.linalg.norm(one.optimizer.m * 10) == pytest.approx(1, rel=1e-4)


def test_adamw_is_its_definition():
    """Three steps; the matrix, of six numbers, decays, and the bias, of two, does not."""
    rng = np.random.default_rng(0)
    flat = rng.standard_normal(8)
    w, m, v, decay = flat.copy(), 0.0, 0.0, np.array([0.1] * 6 + [0.0] * 2)
    adamw = AdamW(flat, {"weight": (2, 3), "bias": (2,)}, (0.9, 0.95), 0.1)
    for t in (1, 2, 3):
        g = rng.standard_normal(8)
        adamw.step(2 * g, lr=0.01, scale=0.5)
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g**2
        w = w * (1 - 0.01 * decay) - 0.01 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.95**t)) + 1e-8)
        np.testing.assert_allclose(flat, w, rtol=1e-12)


def test_clipping_scales_long_gradients():
    gradient = np.array([3.0, -4.0])
    assert clip(gradient, 5.0) == (5, 1)
    assert clip(gradient, 0.5) == (5, pytest.approx(0.1, rel=1e-6))
    assert clip(gradient, 0.0) == (5, 0)


# the command

SHAPE = ("--n-layer", "1", "--n-head", "2", "--n-embd", "8", "--context", "8", "--vocab-size", "270")
FLAGS = (*SHAPE, "--batch", "3")
FROM = ("--from", "shakespeare-tied")
SHORT = (*FLAGS, "--steps", "6", "--eval-every", "2")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "corpus.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


@pytest.fixture
def interruptible():
    """SIGINT is Ctrl-C also where the tests run in the background of a script, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def run(capfd, monkeypatch, corpus, tmp_path):
    """run(*flags) -> (exit code, stdout, stderr) of `train CORPUS --out tmp_path/model`, in this process."""

    def run(*flags, corpus=corpus, out=tmp_path / "model", stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            code = cli.main(["train", str(corpus), "--out", str(out), *map(str, flags)])
        except SystemExit as stop:  # argparse's way out, and SIGTERM's
            code = stop.code
        return code, *capfd.readouterr()

    return run


def records(path):
    """The lines of a log."""
    return [json.loads(line) for line in (path / LOG).read_text().splitlines()]


def contents(directory):
    """What the files of a directory hold."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def saved_step(directory):
    """The step from which --resume goes on."""
    return json.loads(safetensors.read_with_metadata(directory / STATE)[1]["training"])["step"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, corpus):
    """A directory with what a run of SHORT leaves."""
    path = tmp_path_factory.mktemp("unbroken")
    with blas.one_blas_thread(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "reading_threads", lambda: 1)  # as in one_thread
        assert cli.main(["train", corpus, "--out", str(path / "model"), *SHORT]) == 0
    return path


def at_step(monkeypatch, step, do):
    """Do something before a step's batch is drawn."""
    draw = Trainer._draw

    def interrupted(self, micro):
        if self.step == step - 1:
            do()
        return draw(self, micro)

    monkeypatch.setattr(Trainer, "_draw", interrupted)


def test_stdout_stderr_and_files_of_a_run(run, tmp_path, unbroken):
    code, out, err = run(*SHORT)
    assert code == 0
    log = records(unbroken / "model")
    held_out = {line["step"]: line["val_loss"] for line in log}
    assert list(held_out) == [0, 2, 4, 6]
    lines = err.splitlines()  # on no terminal there is no bar: a line for each look at held-out text
    assert [int(line.split(":")[0].removeprefix("step")) for line in lines] == [0, 2, 4, 6]
    assert all(
        f"held out {held_out[step]:.4f} nats" in line for step, line in zip(held_out, lines, strict=True)
    )
    *curve, first, second = out.splitlines()
    assert first == f"{tmp_path / 'model'}: tied, 3,112 parameters, 270 tokens"
    assert second.startswith(f"held out: {min(held_out.values()):.4f} nats per token, ")
    assert second.endswith("bits per byte, after step 6")
    assert contents(tmp_path / "model") == contents(unbroken / "model")
    names = ["config.json", LOG, "merges.txt", "model.safetensors", STATE, "vocab.json"]
    assert sorted(contents(tmp_path / "model")) == names
    losses = [loss for line in log for name, loss in line.items() if name != "step"]
    assert curve[0].startswith(f"{max(losses):7.2f} |")
    assert [line for line in curve if line.startswith(f"{min(losses):7.2f} |")]
    assert sum(line.count("o") for line in curve[:8]) == len(log), "a mark for each evaluation"
    assert curve[-2] == f"{'':9}o held out, . training: nats per token, by step"


def test_the_log_has_the_mean_loss_of_the_steps_between_evaluations():
    run = trainer(settings=replace(TINY, eval_every=2))
    losses = {record["step"]: record.get("loss") for record in train(run)}
    assert [line["step"] for line in run.evaluations] == [0, 2, 4, 6]
    assert "loss" not in run.evaluations[0]
    for line in run.evaluations[1:]:
        step = line["step"]
        assert line["loss"] == pytest.approx((losses[step - 1] + losses[step]) / 2)


@pytest.mark.parametrize(("steps", "every"), [(6, 1), (40, 4), (100, 10)])
def test_by_default_there_are_ten_evaluations(steps, every):
    assert trainer(settings=replace(TINY, steps=steps, eval_every=0)).settings.eval_every == every


def test_a_curve_of_one_point_or_of_equal_losses():
    for evaluations in ([{"step": 0, "val_loss": 2.0}], [{"step": n, "val_loss": 2.0} for n in range(3)]):
        assert loss_curve(evaluations).count("2.00 |") == 2


def test_json_and_what_score_says_of_the_same_text(run, tmp_path, capfd):
    code, out, _ = run(*SHORT, "--json", "--head", "untied")
    report = json.loads(out)
    assert code == 0
    best = {"best_step": 6, "head": "untied", "parameters": 3112 + 8 * 270, "steps": 6}
    assert report.items() >= {**best, "model": str(tmp_path / "model")}.items()

    (tmp_path / "rest.txt").write_text(TEXT[len(TEXT) * 9 // 10 :])
    score = ["score", "--model", report["model"], "--stride", "7", str(tmp_path / "rest.txt"), "--json"]
    assert cli.main(score) == 0
    expected = json.loads(capfd.readouterr().out)
    assert report["val_loss"] == pytest.approx(expected["nll"], rel=1e-6)
    assert report["val_bits_per_byte"] == pytest.approx(expected["bits_per_byte"], rel=1e-6)


def test_only_head_trains_the_output_matrix_alone(run, checkpoint, tmp_path):
    flags = ("--from", checkpoint, "--only", "head", "--steps", "2", "--context", "8", "--lr", "0.1")
    assert run(*flags)[0] == 0
    before, after = tiedgpt.load_model(checkpoint), tiedgpt.load_model(tmp_path / "model")
    assert not after.config.tied
    assert not np.array_equal(after.W_U, before.W_U)
    for name, array in before.parameters.items():
        np.testing.assert_array_equal(after.parameters[name], array)


@pytest.mark.parametrize(("vocab", "eot"), [(256, None), (257, 256), (258, 256)])
def test_vocabularies_of_hardly_more_than_bytes(vocab, eot, run, tmp_path):
    assert run(*SHORT, "--vocab-size", vocab)[0] == 0
    config = tiedgpt.load_model(tmp_path / "model").config
    eot = 257 if vocab == 258 else eot
    assert (config.vocab_size, config.bos_token_id, config.eos_token_id) == (vocab, eot, eot)


def test_a_text_with_fewer_tokens_than_asked_for(run, tmp_path):
    code, out, err = run(*SHORT, "--vocab-size", 5000)
    assert code == 0
    size = tiedgpt.load_model(tmp_path / "model").config.vocab_size
    assert size < 1000
    assert f"note: only {size} tokens can be learned from the text: the vocabulary has no more\n" in err
    assert f"{size:,} tokens\n" in out


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_generate_reads_it(head, run, tmp_path, capfd):
    assert run(*SHORT, "--head", head, "--lr", "0.05")[0] == 0
    config = tiedgpt.load_model(tmp_path / "model").config
    assert (config.head, config.n_ctx, config.eos_token_id) == (head, 8, 269)
    assert cli.main(["generate", "--model", str(tmp_path / "model"), "--greedy", "-n", "20", "Each"]) == 0
    assert capfd.readouterr().out != ""


# where it starts: a learning rate of 1e-30 improves nothing, and the model of step 0 is kept

START = ("--lr", "1e-30", "--steps", "1")


@pytest.mark.parametrize("source", ["scratch", "tied", "untied"])
def test_what_the_output_matrix_starts_as(source, run, tmp_path, unbroken):
    start = tiedgpt.load_model(unbroken / "model")
    if source == "untied":
        start = start.untie("random", seed=5)
    tiedgpt.save_model(start, tiedgpt.load_tokenizer(unbroken / "model"), tmp_path / "start")
    flags = FLAGS if source == "scratch" else ("--from", tmp_path / "start")
    code, _, err = run(*flags, "--head", "untied", *START)
    assert code == 0
    model = tiedgpt.load_model(tmp_path / "model")
    W_E, W_U = model.W_E, model.W_U.T
    assert model.config.head == "untied"
    assert ("it starts as a copy of wte.T" in err) == (source == "tied")
    if source == "scratch":
        assert W_U.std() == pytest.approx(0.02, rel=0.05)
        assert abs(np.corrcoef(W_U.ravel(), W_E.ravel())[0, 1]) < 0.1
    else:
        np.testing.assert_array_equal(W_E, start.W_E)
        np.testing.assert_array_equal(W_U, start.W_U.T)


def test_dropout_and_context(run, tmp_path, unbroken):
    assert run(*SHORT, "--dropout", "0.25")[0] == 0
    config = tiedgpt.load_model(tmp_path / "model").config
    assert (config.embd_pdrop, config.resid_pdrop, config.attn_pdrop) == (0.25, 0.25, 0)
    assert run("--from", unbroken / "model", "--context", "3", *START, out=tmp_path / "other")[0] == 0
    assert tiedgpt.load_model(tmp_path / "other").config.n_ctx == 8


# runs that end early


def test_the_best_model_is_kept_when_later_ones_are_worse(run, tmp_path, monkeypatch):
    seen = []

    def losses(model, *_):
        seen.append({name: array.copy() for name, array in model.parameters.items()})
        return np.array([3.0, 2.0, 4.0, 5.0])[[len(seen) - 1]]

    monkeypatch.setattr(loop, "token_losses", losses)
    code, out, err = run(*SHORT)
    assert code == 0
    assert out.endswith("after step 2\n")
    assert [line.endswith("(not the best)") for line in err.splitlines()] == [False, False, True, True]
    for name, array in tiedgpt.load_model(tmp_path / "model").parameters.items():
        np.testing.assert_array_equal(array, seen[1][name], err_msg=name)
    last = safetensors.read_header(tmp_path / "model" / STATE)["parameters"].read()
    np.testing.assert_array_equal(last, np.concatenate([array.ravel() for array in seen[3].values()]))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("step", [3, 4])  # after 4 there is a look at held-out text
def test_a_signal_saves_and_the_run_goes_on(
    number, code, step, run, interruptible, tmp_path, monkeypatch, unbroken
):
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        at_step(patch, step, lambda: os.kill(os.getpid(), number))
        stopped = run(*SHORT)
    assert stopped[0] == code
    assert "tiedgpt: note: stopping after this step; again to stop at once\n" in stopped[2]
    assert f"tiedgpt: note: stopped after step {step}; continue with --resume\n" in stopped[2]
    assert stopped[1].endswith(f"after step {step // 2 * 2}\n")
    assert [line["step"] for line in records(tmp_path / "model")] == [0, 2, 4][: step // 2 + 1]
    assert saved_step(tmp_path / "model") == step
    assert signal.getsignal(signal.SIGINT) is before

    assert run("--resume")[0] == 0
    assert contents(tmp_path / "model") == contents(unbroken / "model")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_it_at_once(number, code, run, interruptible, tmp_path, monkeypatch):
    def twice():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), number)

    at_step(monkeypatch, 4, twice)
    ended = run(*SHORT, "-q")
    assert ended == (code, "", "\n" if number == signal.SIGINT else "")
    assert saved_step(tmp_path / "model") == 2
    assert len(contents(tmp_path / "model")) == 6
    assert tiedgpt.load_model(tmp_path / "model")


def test_a_signal_that_is_ignored_stays_so(run, interruptible, monkeypatch):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    at_step(monkeypatch, 3, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert run(*SHORT)[0] == 0
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


@posix
def test_two_trainings_in_one_directory(run, tmp_path, unbroken, corpus, monkeypatch):
    """The second is refused, new or resumed, and the first ends as if it had been alone."""
    refused = []

    def train_there_too():
        for flags in (SHORT, ["--resume"]):
            command = [sys.executable, "-m", "tiedgpt", "train", corpus, "--out", tmp_path / "model", *flags]
            refused.append(subprocess.run(command, capture_output=True, text=True))

    at_step(monkeypatch, 3, train_there_too)
    assert run(*SHORT)[0] == 0
    message = f"is in use by process {os.getpid()}; wait until it ends, or choose another directory"
    for process in refused:
        assert_one_error_line((process.returncode, process.stdout, process.stderr), message)
    assert len(refused) == 2
    assert contents(tmp_path / "model") == contents(unbroken / "model")


def test_a_disk_that_is_full_in_mid_training(run, tmp_path, monkeypatch, unbroken):
    """A limit on the size of files stands in for the disk. writers.py fills it at any moment of a save."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with monkeypatch.context() as patch:
            at_step(patch, 4, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1])))
            code, _, err = run(*SHORT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 2
    assert "tiedgpt: error: cannot write to" in err.splitlines()[-1]
    assert "model of step 2" in err.splitlines()[-1]
    assert len(contents(tmp_path / "model")) == 6
    assert run("--resume")[0] == 0
    assert contents(tmp_path / "model") == contents(unbroken / "model")


@pytest.mark.parametrize("lr", ["1e9", "1e300"])
def test_a_loss_that_is_no_number(lr, run, tmp_path):
    code, out, err = run(*SHORT, "--lr", lr)
    assert (code, out) == (2, "")
    first, last = err.splitlines()
    assert first.startswith("step      0: held out 5.")
    assert last.startswith("tiedgpt: error: the loss of step 2 is ")
    assert last.endswith(f"too high for this model; {tmp_path / 'model'} holds the model of step 0")
    model = tiedgpt.load_model(tmp_path / "model")
    assert all(np.isfinite(array).all() for array in model.parameters.values())


def test_no_memory_for_the_batch(run, monkeypatch):
    draw = Trainer._draw
    monkeypatch.setattr(
        Trainer, "_draw", lambda self, micro: np.empty((1 << 50, 8)) if self.step else draw(self, 0)
    )
    code, out, err = run(*SHORT)
    assert (code, out) == (2, "")
    message = "not enough memory for a batch of 3 sequences of 8 tokens; use a smaller --batch"
    assert err.splitlines()[-1].startswith(f"tiedgpt: error: {message}")


def test_on_a_terminal_there_is_a_bar(tmp_path, corpus):
    """Ctrl-C under it: the lines about held-out text stay whole, and the bar's end is the line's end."""
    pty = pytest.importorskip("pty")
    arguments = [sys.executable, "-m", "tiedgpt", "train", corpus, "--out", str(tmp_path / "model"), *FLAGS]
    pid, master = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        size = struct.pack("HHHH", 40, 100, 0, 0)
        pytest.importorskip("fcntl").ioctl(1, pytest.importorskip("termios").TIOCSWINSZ, size)
        os.execv(sys.executable, [*arguments, "--steps", "1000000"])
    shown, deadline, typed = b"", time.monotonic() + 60, False
    while time.monotonic() < deadline:
        if not typed and b"tokens/s" in shown:
            os.write(master, b"\x03")
            typed = True
        if select.select([master], [], [], 0.1)[0]:
            try:
                shown += os.read(master, 4096)
            except OSError:  # Linux's way to say that the other side is closed
                break
    os.close(master)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    text = shown.decode()
    assert "held out: 100%" in text
    assert "/1000000 [" in text
    # what is left of each line when all is written
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n")]
    assert any(line.startswith("step      0: held out 5.") for line in lines), lines
    assert any(line.startswith("tiedgpt: note: stopped after step") for line in lines), lines


# a run that goes on


def test_a_run_that_is_done(run, tmp_path):
    assert run(*SHORT)[0] == 0
    before = contents(tmp_path / "model")
    code, out, err = run("--resume")
    assert (code, err) == (0, "tiedgpt: note: all 6 steps are done; give a larger --steps to train more\n")
    assert out.endswith("after step 6\n")
    assert contents(tmp_path / "model") == before
    assert run("--resume", "--steps", "8")[0] == 0
    assert [line["step"] for line in records(tmp_path / "model")] == [0, 2, 4, 6, 8]


def test_resume_takes_the_same_flags_again(run, tmp_path, unbroken):
    """Given or by default."""
    assert run(*SHORT, "--steps", "4")[0] == 0
    defaults = ("--lr", "0.003", "--dropout", "0.1", "--head", "tied", "--seed", "1")
    assert run(*SHORT, *defaults, "--resume")[0] == 0
    assert [line["step"] for line in records(tmp_path / "model")] == [0, 2, 4, 6]
    again = ("--from", unbroken / "model", *START)
    assert run(*again, out=tmp_path / "other")[0] == run(*again, "--resume", out=tmp_path / "other")[0] == 0


def test_resume_reads_a_directory_even_if_its_name_is_a_models(run, tmp_path, monkeypatch):
    """To load by that name would be to look for GPT-2, or to go on from its weights."""
    monkeypatch.chdir(tmp_path)
    assert run(*SHORT, out="gpt2")[0] == 0
    code, out, err = run("--resume", "--steps", "8", out="gpt2")
    assert code == 0, err
    assert "\ngpt2: tied, 3,112 parameters" in out


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--batch", 4, "--batch cannot change with --resume: it was 3, now it is 4"),
        ("--vocab-size", 271, "--vocab-size cannot change with --resume: it was 270, now it is 271"),
        ("--head", "untied", "--head cannot change with --resume: it was tied, now it is untied"),
        ("--from", "gpt2", "--from cannot change with --resume: it was not given, now it is gpt2"),
        ("--only", "head", "--only cannot change with --resume: it was not given, now it is head"),
        ("--n-layer", "2", "--n-layer cannot change with --resume"),
        ("--eval-every", "1", "--eval-every cannot change with --resume"),
        ("--dropout", "0", "--dropout cannot change with --resume"),
        ("--steps", "0", "--steps: expected a whole number from 1 to 2147483647, got '0'"),
        ("--steps", "5", "6 steps are done already; steps must be at least that, got 5"),
    ],
)
def test_resume_refuses_flags_that_would_change_the_run(flag, value, message, run, unbroken):
    before = contents(unbroken / "model")
    assert_one_error_line(run("--resume", flag, value, out=unbroken / "model"), message)
    assert contents(unbroken / "model") == before


def test_a_run_cannot_go_on_with_another_text_or_a_damaged_state(run, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(TEXT.replace("often", "often "))
    assert run(*SHORT)[0] == 0
    assert_one_error_line(run("--resume", corpus=other), "was trained on another text: give the same text")
    state = tmp_path / "model" / STATE
    state.write_bytes(state.read_bytes()[:-100])
    assert_one_error_line(run("--resume"), f"{state}: truncated")
    state.unlink()
    assert_one_error_line(run("--resume"), "model holds no training to continue")


# what is wrong before anything is written


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        (b"", (), "the text to train on has 0 tokens; expected at least 9"),
        (b"a", (), "the text to train on has 0 tokens"),
        (b"ab cd ef", (), "the text to train on has 7 tokens"),
        (b"ab cd ef g", (), "the held-out text has"),
        (b"caf\xe9 " * 99, (), "text.txt is not UTF-8 text: byte 0xe9 at position 3"),
        (b"a<|endoftext|>b" * 99, (), "the text holds <|endoftext|>; to read it as that token, add --allow-"),
        (None, ("--n-head", "3"), "--n-embd must be a multiple of --n-head, got 8 and 3"),
        (None, ("--n-head", "0"), "--n-head: expected a whole number from 1 to 2147483647, got '0'"),
        (None, ("--n-layer", "-1"), "--n-layer: expected a whole number from 0 to 1000, got '-1'"),
        (None, ("--n-embd", 10**9), "--n-embd: expected a whole number from 1 to 536870911, got"),
        (None, ("--vocab-size", "10"), "--vocab-size: expected a whole number from 256 to 21"),
        (None, ("--context", "1"), "--context: expected a whole number from 2 to 2147483647, got '1'"),
        (None, ("--batch", "0"), "--batch: expected a whole number from 1 to 2147483647, got '0'"),
        (None, ("--steps", 2**31), "--steps: expected a whole number from 1 to 2147483647, got"),
        (None, ("--seed", "-1"), "--seed: expected a whole number from 0 to 2147483647, got '-1'"),
        (None, ("--lr", "nan"), "--lr: expected a number above 0, got 'nan'"),
        (None, ("--lr", "fast"), "--lr: expected a number above 0, got 'fast'"),
        (None, ("--dropout", "1.5"), "--dropout: expected a number of at least 0 and below 1, got"),
        (None, ("--only", "head"), "--only head needs --from: the rest of the model must be trained already"),
        (None, (*FROM, "--context", "129"), "a context of 129 tokens is more than the model's 128"),
        (None, (*FROM, "--vocab-size", "300"), "--vocab-size cannot be given with --from: the checkpoint"),
        (None, (*FROM, "--n-layer", "1"), "--n-layer cannot be given with --from: the checkpoint"),
        (None, ("--resume",), "model holds no training to continue"),
    ],
)
def test_flags_refused_for_a_new_model(text, flags, message, run, tmp_path, corpus):
    if text is not None:
        corpus = tmp_path / "text.txt"
        corpus.write_bytes(text)
    before = sorted(tmp_path.iterdir())
    shape = () if flags[:2] == FROM else SHAPE
    assert_one_error_line(run(*shape, *flags, corpus=corpus), message)
    assert sorted(tmp_path.iterdir()) == before


def test_occupied_directories_and_files_are_refused(run, tmp_path, unbroken):
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    for name, problem in {"file": ": Not a directory", "full": " is not empty; choose a new"}.items():
        message = f"{tmp_path / name}{problem}"
        assert_one_error_line(run(*SHORT, out=tmp_path / name), message)
    assert_one_error_line(run("--resume", out=tmp_path / "full"), "full holds no training to continue")
    before = contents(unbroken / "model")
    message = f"{unbroken / 'model'} holds a training already: add --resume to continue it"
    assert_one_error_line(run(*SHORT, out=unbroken / "model"), message)
    assert contents(unbroken / "model") == before
    (tmp_path / "empty").mkdir()
    assert run(*SHORT, out=tmp_path / "empty")[0] == 0
    assert_one_error_line(run(*SHORT, corpus=tmp_path, out=tmp_path / "x"), "Is a directory")


def test_line_ends_and_a_text_from_stdin(run, tmp_path):
    """The text is read to the byte: CRs, a BOM and NULs included."""
    text = "\ufeff" + "one\r\ntwo\0three\r\n" * 50
    code, out, _ = run(*SHORT, "--vocab-size", "256", "--json", corpus="-", stdin=text.encode())
    assert code == 0
    held_out = text[len(text) * 9 // 10 :].encode()
    tokenizer = tiedgpt.load_tokenizer(tmp_path / "model")
    byte_ids = tokenizer.encode(held_out.decode())
    assert tokenizer.decode(byte_ids) == held_out.decode()
    score = tiedgpt.score(tiedgpt.load_model(tmp_path / "model"), tokenizer, byte_ids, stride=7)
    assert json.loads(out)["val_loss"] == pytest.approx(score.nll, rel=1e-6)
