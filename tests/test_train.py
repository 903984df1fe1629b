"""Training: runs, threads, files, errors. test_cli.py has bad flags; writers.py, kills and full
disks."""

import json
import math
import os
import re
import signal
from copy import deepcopy
from dataclasses import fields, replace

import numpy as np
import pytest
from support.checks import contents, refuses
from support.commands import assert_one_error_line
from support.models import SMALL, random_model
from support.terminal import CTRL_C, Terminal

import tiedgpt
from tiedgpt import cli
from tiedgpt.checkpoints import safetensors
from tiedgpt.cli.train import loss_curve
from tiedgpt.errors import ArgumentError, CheckpointError, TiedGPTError
from tiedgpt.fast import blas, threads
from tiedgpt.gpt2.ops import cross_entropy
from tiedgpt.training import loop
from tiedgpt.training.loop import LOG, STATE, Settings, Trainer
from tiedgpt.training.optimizer import AdamW, clip, learning_rate

UNTIED = replace(SMALL, tied=False)
STILL = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}  # no dropout
TINY = Settings(steps=6, batch=5, context=11, warm_up=2, eval_every=4, threads=1)
TEXT = "\ufeff" + "".join(
    f"Each of {n}\0tokens was read {n * n} times, not once too often.\r\n" for n in range(99)
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On a busy machine BLAS threads that wait are slow. Reading threads change the last bits of a
    loss."""
    with blas.one_blas_thread(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "reading_threads", lambda: 1)
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


def assert_same_parameters(model, expected):
    assert model.config.head == expected.config.head
    np.testing.assert_equal(dict(model.parameters), dict(expected.parameters))


@pytest.mark.parametrize("stop", [1, 4])
@pytest.mark.parametrize(("threads", "only"), [(1, None), (2, None), (1, "head")])
def test_a_resumed_run_has_the_same_numbers(threads, only, stop, tmp_path):
    """With dropout: every loss and every parameter of a run in two parts is an unbroken run's, to
    the bit."""
    tiedgpt.save_model(random_model(UNTIED), None, tmp_path / "start")
    settings, model = replace(TINY, threads=threads), tiedgpt.load_model(tmp_path / "start")
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
    assert second.best == unbroken.best
    assert_same_parameters(second.model, unbroken.model)
    assert_same_parameters(second.best_model(), unbroken.best_model())


def test_resume_with_more_steps(tmp_path):
    first = trainer(
        settings=replace(TINY, steps=np.int64(6), lr=np.float32(0.5))
    )  # NumPy's numbers
    train(first)
    first.save(tmp_path)
    second = Trainer.resume(tmp_path, first.tokens, first.held_out, steps=9)
    assert second.settings == replace(first.settings, steps=9)
    rates = {record["step"]: record["lr"] for record in train(second)}
    assert rates == {step: learning_rate(step - 1, 9, 0.5, 0) for step in (7, 8, 9)}


@pytest.mark.parametrize("only", [None, "head"])
@pytest.mark.parametrize("threads", [2, 3, 5])
def test_the_shares_of_threads_add_up(threads, only):
    model = random_model(replace(UNTIED, **STILL), dtype=np.float64)
    settings = replace(TINY, batch=6, steps=1, clip=1e9)
    whole, shared = (trainer(model, replace(settings, threads=n), only) for n in (1, threads))
    assert train(shared)[1]["loss"] == pytest.approx(train(whole)[1]["loss"], rel=1e-13)
    gradient, added = (
        10 * whole.optimizer.m,
        10 * shared.optimizer.m,
    )  # m is a tenth of the first gradient
    np.testing.assert_allclose(added, gradient, rtol=1e-9, atol=1e-14)


def test_a_text_of_one_window_is_read_whole():
    model = random_model(replace(SMALL, **STILL), dtype=np.float64)
    one = trainer(
        model, size=TINY.context + 1
    )  # the first is only read and the last only predicted
    expected = cross_entropy(model(one.tokens[:-1]), one.tokens[1:]).mean()
    assert train(one, 1)[1]["loss"] == pytest.approx(expected, rel=1e-12)


def test_batches_come_from_all_over_the_text_and_are_never_the_same():
    seen = []
    one = trainer(settings=replace(TINY, steps=80), size=40)
    draw = one._draw
    one._draw = lambda: seen.append(draw()) or seen[-1]
    train(one)
    assert len({rows.tobytes() for rows in seen}) == len(seen) == 80
    starts = {rows.tobytes() for batch in seen for rows in batch}
    assert len(starts) == 40 - TINY.context


def test_the_shares_of_threads_have_dropout_of_their_own(monkeypatch):
    one, seeds = trainer(settings=replace(TINY, steps=3, threads=2)), []
    generator = np.random.default_rng
    monkeypatch.setattr(
        np.random, "default_rng", lambda seed: seeds.append(tuple(seed)) or generator(seed)
    )
    train(one)
    assert len(set(seeds)) == len(seeds) == 3 * (1 + 2)


def test_arguments_that_do_not_fit_each_other():
    for config, only, message in (
        (SMALL, "head", "a tied model has no separate head to train: untie it first"),
        (UNTIED, "body", "only must be \"head\" or None, got 'body'"),
        (replace(SMALL, vocab_size=50), None, "token id .* is outside the vocabulary of 50"),
    ):
        refuses(message, trainer, random_model(config), TINY, only, error=ArgumentError)


def test_settings_out_of_range():
    wrong = [(field.name, -1) for field in fields(Settings)]
    wrong += [(name, 0) for name in ("steps", "batch", "context")]
    for name, value in [*wrong, ("steps", 2**31), ("lr", math.inf), ("beta2", 1.0)]:
        with pytest.raises(ArgumentError, match=f"^{name} must be a .*number .*, got {value}"):
            Settings(**{name: value})


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_stops_before_the_step(bad, monkeypatch):
    one = trainer()
    train(one, 2)
    before = one.flat.copy()
    monkeypatch.setattr(loop, "clip", lambda gradient, limit: (bad, 1.0))
    message = f"step 3 has loss .*, norm of the gradient {bad}: the learning rate is too high"
    with pytest.raises(TiedGPTError, match=message):
        train(one)
    np.testing.assert_array_equal(one.flat, before)
    assert one.step == 2


def test_a_damaged_state_is_refused(tmp_path):
    one = trainer()
    train(one, 1)
    for change, message in (
        (lambda state, _: state.pop("step"), "KeyError"),
        (lambda state, _: state.update(step=-1), ".*step -1"),
        (lambda state, _: state.update(best=None), "TypeError"),
        (lambda state, _: state.update(best=["1", 2]), ".*best"),
        (lambda state, _: state["settings"].update(batch=0), ".*batch must be a whole number"),
        (lambda state, _: state["settings"].update(x=0), "TypeError"),
        (lambda _, arrays: arrays.pop("v"), "a tensor v of .* float32 numbers"),
        (lambda _, arrays: arrays.update(m=arrays["m"][:1]), "a tensor m of .* float32 numbers"),
        (
            lambda _, arrays: arrays.update(parameters=np.zeros(9)),
            "a tensor parameters of .* float32",
        ),
    ):
        one.save(tmp_path)
        tensors, metadata = safetensors.read_with_metadata(tmp_path / STATE)
        arrays = {name: tensor.read() for name, tensor in tensors.items()}
        state = json.loads(metadata["training"])
        change(state, arrays)
        with (tmp_path / STATE).open("wb") as file:
            safetensors.write(file, arrays.items(), {"training": json.dumps(state)})
        problem = rf"{STATE}( does not hold the state of a training: |: expected ){message}"
        refuses(problem, Trainer.resume, tmp_path, one.tokens, one.held_out)


def test_the_learning_rate_schedule():
    rates = [learning_rate(step, 100, 2.0, 10) for step in range(101)]
    assert rates[:11] == pytest.approx(2 / 11 * np.arange(1, 12))
    assert max(rates) == rates[10] == 2
    assert (rates[55], rates[100]) == pytest.approx((0.2 + 0.9, 0.2))  # half way down, and down
    assert (np.diff(rates[10:]) < 0).all()
    assert learning_rate(0, 1, 2.0, 0) == 2


def test_long_gradients_are_clipped_by_default_to_a_norm_of_1():
    one = trainer()
    assert train(one, 1)[1]["grad_norm"] > 2
    assert np.linalg.norm(one.optimizer.m * 10) == pytest.approx(1, rel=1e-4)
    for limit, factor in ((5.0, 1), (0.5, pytest.approx(0.1, rel=1e-6)), (0.0, 0)):
        assert clip(np.array([3.0, -4.0]), limit) == (5, factor)


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


SHAPE = (
    "--n-layer",
    "1",
    "--n-head",
    "2",
    "--n-embd",
    "8",
    "--context",
    "8",
    "--vocab-size",
    "270",
)
FLAGS = (*SHAPE, "--batch", "3")
SHORT = (*FLAGS, "--steps", "6", "--eval-every", "2")
# A learning rate at which nothing improves, so that the model of step 0 is kept
START = ("--lr", "1e-30", "--steps", "1")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "corpus.txt"
    path.write_bytes(TEXT.encode())
    return str(path)


@pytest.fixture
def interruptible():
    """SIGINT is Ctrl-C also where the tests run in the background of a script, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def start(run, corpus, tmp_path):
    """start(*flags) -> (exit code, stdout, stderr) of `train CORPUS --out tmp_path/model`."""

    def start(*flags, corpus=corpus, out=tmp_path / "model", stdin=b""):
        return run("train", str(corpus), "--out", str(out), *map(str, flags), stdin=stdin)

    return start


def steps(path):
    return [json.loads(line)["step"] for line in (path / LOG).read_text().splitlines()]


def saved_step(directory):
    """The step from which --resume goes on."""
    return json.loads(safetensors.read_with_metadata(directory / STATE)[1]["training"])["step"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, corpus):
    """A directory with what a run of SHORT leaves."""
    path = tmp_path_factory.mktemp("unbroken") / "model"
    assert cli.main(["train", corpus, "--out", str(path), *SHORT]) == 0
    return path


def at_step(monkeypatch, step, do):
    """Do something before a step's batch is drawn."""
    draw = Trainer._draw

    def interrupted(self):
        if self.step == step - 1:
            do()
        return draw(self)

    monkeypatch.setattr(Trainer, "_draw", interrupted)


def test_stdout_stderr_and_files_of_a_run(start, tmp_path, unbroken):
    """On no terminal there is no bar: a line for each look at held-out text. An empty directory is
    taken."""
    (tmp_path / "model").mkdir()
    code, out, err = start(*SHORT)
    assert code == 0
    assert contents(tmp_path / "model") == contents(unbroken)
    names = ["config.json", LOG, "merges.txt", "model.safetensors", STATE, "vocab.json"]
    assert sorted(contents(unbroken)) == names
    log = [json.loads(line) for line in (unbroken / LOG).read_text().splitlines()]
    assert [line["step"] for line in log] == [0, 2, 4, 6]
    for line, shown in zip(log, err.splitlines(), strict=True):
        assert re.match(rf"step +{line['step']}: .*held out {line['val_loss']:.4f} nats per", shown)
    *curve, first, second = out.splitlines()
    assert first == f"{tmp_path / 'model'}: tied, 3,112 parameters, 270 tokens"
    lowest = min(line["val_loss"] for line in log)
    assert re.match(
        rf"held out: {lowest:.4f} nats per token, \S+ bits per byte, after step 6$", second
    )
    losses = [loss for line in log for name, loss in line.items() if name != "step"]
    assert curve[0].startswith(f"{max(losses):7.2f} |o"), "the model without training is the worst"
    assert [line for line in curve if line.startswith(f"{min(losses):7.2f} |")]
    assert sum(line.count("o") for line in curve[:8]) == len(log), "a mark for each evaluation"
    assert curve[-2] == f"{'':9}o held out, . training: nats per token, by step"
    assert loss_curve([{"step": n, "val_loss": 2.0} for n in range(3)]).count("2.00 |") == 2


def test_the_log_has_the_mean_loss_of_the_steps_between_evaluations():
    run = trainer(settings=replace(TINY, eval_every=2))
    losses = [record.get("loss") for record in train(run)]
    means = {step: pytest.approx((losses[step - 1] + losses[step]) / 2) for step in (2, 4, 6)}
    assert {line["step"]: line.get("loss") for line in run.evaluations} == {0: None, **means}


@pytest.mark.parametrize(("steps", "every"), [(6, 1), (40, 4), (100, 10)])
def test_by_default_there_are_ten_evaluations(steps, every):
    assert trainer(settings=replace(TINY, steps=steps, eval_every=0)).settings.eval_every == every


def test_json_of_a_text_from_stdin_and_what_score_says_of_its_end(start, run, tmp_path):
    """The text is read to the byte: CRs, a BOM and NULs included."""
    code, out, _ = start(*SHORT, "--json", "--head", "untied", corpus="-", stdin=TEXT.encode())
    report = json.loads(out)
    known = {
        "model": str(tmp_path / "model"),
        "head": "untied",
        "parameters": 3112 + 8 * 270,
        "steps": 6,
    }
    assert (code, report) == (0, {**report, **known, "best_step": 6})
    rest = TEXT[len(TEXT) * 9 // 10 :].encode()
    expected = json.loads(
        run("score", "-m", report["model"], "--stride", "7", "--json", stdin=rest)[1]
    )
    assert report["val_loss"] == pytest.approx(expected["nll"], rel=1e-6)
    assert report["val_bits_per_byte"] == pytest.approx(expected["bits_per_byte"], rel=1e-6)


def test_only_head_trains_the_output_matrix_alone(start, checkpoint, tmp_path):
    flags = (
        "--from",
        checkpoint,
        "--only",
        "head",
        "--steps",
        "2",
        "--context",
        "8",
        "--lr",
        "0.1",
    )
    assert start(*flags)[0] == 0
    before, after = tiedgpt.load_model(checkpoint), tiedgpt.load_model(tmp_path / "model")
    assert (after.config.tied, after.config.n_ctx) == (False, before.config.n_ctx)
    assert not np.array_equal(after.W_U, before.W_U)
    assert_same_parameters(after.tie(), before)


@pytest.mark.parametrize(("asked", "tokens"), [(256, 256), (257, 257), (258, 258), (5000, 359)])
def test_vocabularies_of_hardly_more_than_bytes_and_of_all_that_a_text_gives(
    asked, tokens, start, tmp_path
):
    code, out, err = start(*SHORT, "--vocab-size", asked)
    config, end = (
        tiedgpt.load_model(tmp_path / "model").config,
        None if asked == 256 else tokens - 1,
    )
    assert (config.vocab_size, config.bos_token_id, config.eos_token_id) == (tokens, end, end)
    assert (code, config.n_ctx) == (0, 8)
    assert f"{tokens:,} tokens\n" in out
    note = f"note: only {tokens} tokens can be learned from the text: the vocabulary has no more\n"
    assert (note in err) == (tokens < asked)


@pytest.mark.parametrize("source", ["scratch", "tied", "untied"])
def test_what_the_output_matrix_starts_as(source, start, tmp_path, unbroken):
    begin = tiedgpt.load_model(unbroken)
    begin = begin.untie("random", seed=5) if source == "untied" else begin
    tiedgpt.save_model(begin, tiedgpt.load_tokenizer(unbroken), tmp_path / "start")
    flags = FLAGS if source == "scratch" else ("--from", tmp_path / "start")
    code, _, err = start(*flags, "--head", "untied", *START)
    model = tiedgpt.load_model(tmp_path / "model")
    assert (code, model.config.head) == (0, "untied")
    assert ("a copy of wte.T is used" in err) == (source == "tied")
    if source == "scratch":
        assert model.W_U.std() == pytest.approx(0.02, rel=0.05)
        assert abs(np.corrcoef(model.W_U.T.ravel(), model.W_E.ravel())[0, 1]) < 0.1
    else:
        np.testing.assert_array_equal(model.W_E, begin.W_E)
        np.testing.assert_array_equal(model.W_U, begin.W_U)


def test_dropout(start, tmp_path):
    assert start(*SHORT, "--dropout", "0.25")[0] == 0
    config = tiedgpt.load_model(tmp_path / "model").config
    assert (config.embd_pdrop, config.resid_pdrop, config.attn_pdrop) == (0.25, 0.25, 0)


def test_the_best_model_is_kept_when_later_ones_are_worse(start, tmp_path, monkeypatch):
    seen, losses = [], iter(np.array([[3.0], [2.0], [4.0], [5.0]]))
    monkeypatch.setattr(
        loop, "token_losses", lambda model, *_: seen.append(deepcopy(model)) or next(losses)
    )
    code, out, err = start(*SHORT)
    assert code == 0
    assert out.endswith("after step 2\n")
    assert [line.endswith("(not the best)") for line in err.splitlines()] == [
        False,
        False,
        True,
        True,
    ]
    assert_same_parameters(tiedgpt.load_model(tmp_path / "model"), seen[1])
    last = safetensors.read_header(tmp_path / "model" / STATE)["parameters"].read()
    np.testing.assert_array_equal(
        last, np.concatenate([*map(np.ravel, seen[3].parameters.values())])
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("step", [1, 4])  # after 4 there is a look at held-out text
@pytest.mark.usefixtures("interruptible")
def test_a_signal_saves_and_the_run_goes_on(
    number, code, step, start, tmp_path, monkeypatch, unbroken
):
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        at_step(patch, step, lambda: os.kill(os.getpid(), number))
        ended, out, err = start(*SHORT)
    assert ended == code
    assert f"tiedgpt: note: stopped after step {step}; continue with --resume\n" in err
    assert out.endswith(f"after step {step // 2 * 2}\n")
    assert (out.count("\n") > 2) == (step == 4), "a curve has two evaluations or more"
    assert steps(tmp_path / "model") == [0, 2, 4][: step // 2 + 1]
    assert saved_step(tmp_path / "model") == step
    assert signal.getsignal(signal.SIGINT) is before

    assert start("--resume")[0] == 0
    assert contents(tmp_path / "model") == contents(unbroken)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_it_at_once(number, code, start, interruptible, tmp_path, monkeypatch):
    at_step(monkeypatch, 4, lambda: [os.kill(os.getpid(), one) for one in (signal.SIGTERM, number)])
    assert start(*SHORT, "-q") == (code, "", "\n" if number == signal.SIGINT else "")
    assert saved_step(tmp_path / "model") == 2
    assert len(contents(tmp_path / "model")) == 6
    assert tiedgpt.load_model(tmp_path / "model")


def test_a_signal_that_is_ignored_stays_so(start, interruptible, monkeypatch):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    at_step(monkeypatch, 3, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert start(*SHORT)[0] == 0
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_two_trainings_in_one_directory(start, tmp_path, unbroken, monkeypatch):
    """The second is refused, new or resumed, and the first ends as if it had been alone."""
    refused = []
    at_step(
        monkeypatch, 3, lambda: refused.extend(start(*flags) for flags in (SHORT, ["--resume"]))
    )
    assert start(*SHORT)[0] == 0
    for code, _, err in refused:
        assert code == 2
        assert f"model is in use by process {os.getpid()}; wait, or choose another directory" in err
    assert len(refused) == 2
    assert contents(tmp_path / "model") == contents(unbroken)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        *((f"--lr {lr}", "step 2 has loss .* too high for this model") for lr in ("1e9", "1e300")),
        ("no room", "the disk is full"),
        (
            "no memory",
            "not enough memory for a batch of 3 sequences of 8 tokens; use a smaller --batch",
        ),
    ],
)
def test_what_an_error_in_mid_training_leaves(fault, message, start, tmp_path, monkeypatch):
    """The model of the last save."""
    model = tmp_path / "model"

    def full(*args):
        raise CheckpointError("the disk is full")

    if fault == "no room":
        at_step(monkeypatch, 2, lambda: monkeypatch.setattr(Trainer, "save", full))
    if fault == "no memory":
        at_step(monkeypatch, 2, lambda: np.empty((1 << 50, 8)))
    code, out, err = start(*SHORT, *(fault.split() if "--lr" in fault else ()))
    assert (code, out) == (2, "")
    kept = "" if fault == "no memory" else rf"; {re.escape(str(model))} holds the model of step 0"
    assert re.fullmatch(f"tiedgpt: error: {message}{kept}", err.splitlines()[-1])
    assert steps(model) == [0]
    assert all(np.isfinite(array).all() for array in tiedgpt.load_model(model).parameters.values())


def test_on_a_terminal_there_is_a_bar(tmp_path, corpus):
    """Ctrl-C under it: the lines about held-out text stay whole, and the bar's end is the line's
    end."""
    flags = ("--out", str(tmp_path / "model"), *FLAGS, "--steps", "1000000")
    with Terminal("train", corpus, *flags) as terminal:
        terminal.type("", " tokens/s]")
        terminal.type(CTRL_C)
        assert terminal.process.wait(timeout=60) == 130, terminal.text
    assert "held out: 100%" in terminal.text
    assert "/1000000 [" in terminal.text
    # what is left of each line when all is written
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in terminal.text.split("\n")]
    assert any(line.startswith("step      0: held out 5.") for line in lines), lines
    assert any(
        line.startswith("tiedgpt: note: stopping after this step; again to stop") for line in lines
    )
    assert any(line.startswith("tiedgpt: note: stopped after step") for line in lines), lines


def test_a_run_that_is_done(start, tmp_path, monkeypatch):
    """In a directory with a model's name: to load by that name would be to look for GPT-2, or to
    train it."""
    monkeypatch.chdir(tmp_path)
    assert start(*SHORT, out="gpt2")[0] == 0
    before = contents(tmp_path / "gpt2")
    code, out, err = start("--resume", out="gpt2")
    assert (code, err) == (
        0,
        "tiedgpt: note: all 6 steps are done; give a larger --steps to train more\n",
    )
    assert out.endswith("after step 6\n")
    assert contents(tmp_path / "gpt2") == before
    assert "\ngpt2: tied, 3,112 parameters" in start("--resume", "--steps", "8", out="gpt2")[1]
    assert steps(tmp_path / "gpt2") == [0, 2, 4, 6, 8]


def test_resume_takes_the_same_flags_again(start, tmp_path, unbroken):
    assert start(*SHORT, "--steps", "4")[0] == 0
    defaults = ("--lr", "0.003", "--dropout", "0.1", "--head", "tied", "--seed", "1")
    assert start(*SHORT, *defaults, "--resume")[0] == 0
    assert steps(tmp_path / "model") == [0, 2, 4, 6]
    for flags in ((), ("--resume",)):
        assert start("--from", unbroken, *START, *flags, out=tmp_path / "other")[0] == 0


def test_what_would_change_a_run_is_refused(start, unbroken):
    for flags, message in (
        ("", "model holds a training already: add --resume to continue it"),
        ("--resume --batch 4", "--batch cannot change with --resume: it was 3, now it is 4"),
        (
            "--resume --vocab-size 271",
            "--vocab-size cannot change with --resume: it was 270, now it is 271",
        ),
        (
            "--resume --head untied",
            "--head cannot change with --resume: it was tied, now it is untied",
        ),
        (
            "--resume --from gpt2",
            "--from cannot change with --resume: it was not given, now it is gpt2",
        ),
        (
            "--resume --only head",
            "--only cannot change with --resume: it was not given, now it is head",
        ),
        *(
            (f"--resume --{name} 9", f"--{name} cannot change")
            for name in ("n-layer", "eval-every", "lr")
        ),
        ("--resume --dropout 0", "--dropout cannot change with --resume"),
        ("--resume --steps 5", "6 steps are done already; steps must be at least that, got 5"),
    ):
        before = contents(unbroken)
        assert_one_error_line(start(*flags.split(), out=unbroken), message)
        assert contents(unbroken) == before


def test_a_run_cannot_go_on_with_another_text_or_a_damaged_state(start, tmp_path):
    assert start(*SHORT)[0] == 0
    other = start("--resume", corpus="-", stdin=TEXT.replace("often", "often ").encode())
    assert_one_error_line(other, "was trained on another text: give the same")
    state = tmp_path / "model" / STATE
    state.write_bytes(state.read_bytes()[:-100])
    assert_one_error_line(start("--resume"), f"{state}: truncated")
    state.unlink()
    assert_one_error_line(start("--resume"), "model holds no training to continue")
