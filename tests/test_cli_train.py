"""`tiedgpt train`: output, files, signals, --resume. test_cli_refused.py has flags out of range."""

import json
import os
import re
import signal
from copy import deepcopy

import numpy as np
import pytest
from support.checks import contents
from support.commands import answer, assert_one_error_line
from support.terminal import CTRL_C, Terminal

import tiedgpt
from tiedgpt import cli
from tiedgpt.checkpoints import safetensors
from tiedgpt.cli.train import loss_curve
from tiedgpt.errors import CheckpointError
from tiedgpt.training import loop
from tiedgpt.training.loop import LOG, STATE, Trainer

pytestmark = pytest.mark.usefixtures("one_thread")

# A text with a byte order mark, NULs and CRs, which are read as any other character.
TEXT = "\ufeff" + "".join(
    f"Each of {n}\0tokens was read {n * n} times, not once too often.\r\n" for n in range(99)
)
SHAPE = ["--n-layer", "1", "--n-head", "2", "--n-embd", "8"]
FLAGS = [*SHAPE, "--context", "8", "--vocab-size", "270", "--batch", "3"]
# Flags of a training of 6 steps. After the steps 0, 2, 4 and 6, the model is evaluated and saved.
SHORT = [*FLAGS, "--steps", "6", "--eval-every", "2"]
FILES = ["config.json", LOG, "merges.txt", "model.safetensors", STATE, "vocab.json"]
# The learning rate is so small that the model of step 0 stays the best, which is kept.
WITHOUT_LEARNING = ["--lr", "1e-30", "--steps", "1"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The path of TEXT."""
    path = tmp_path_factory.mktemp("texts") / "corpus.txt"
    path.write_bytes(TEXT.encode())
    return str(path)


@pytest.fixture
def interruptible():
    """Let SIGINT be Ctrl-C, even if a script started the tests so that they ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def train(run, corpus, tmp_path):
    """train(*flags) -> (exit code, stdout, stderr) of `train CORPUS --out tmp_path/model`."""

    def train(*flags, corpus=corpus, out=str(tmp_path / "model"), stdin=b""):
        return run("train", corpus, "--out", out, *flags, stdin=stdin)

    return train


@pytest.fixture(scope="module")
def short_run(tmp_path_factory, corpus):
    """The directory of a training with the flags SHORT, which is done."""
    path = tmp_path_factory.mktemp("short_run") / "model"
    assert cli.main(["train", corpus, "--out", str(path), *SHORT]) == 0
    return path


@pytest.fixture
def at_step(monkeypatch):
    """at_step(step, action): the action is done before the step's batch is drawn."""
    draw = Trainer._draw

    def at_step(step, action):
        def draw_after_the_action(self):
            if self.step == step - 1:
                action()
            return draw(self)

        monkeypatch.setattr(Trainer, "_draw", draw_after_the_action)

    return at_step


def evaluations(directory):
    """The lines of the log."""
    return [json.loads(line) for line in (directory / LOG).read_text().splitlines()]


def evaluated_steps(directory):
    return [evaluation["step"] for evaluation in evaluations(directory)]


def saved_step(directory):
    """The step from which --resume goes on."""
    _, metadata = safetensors.read_with_metadata(directory / STATE)
    return json.loads(metadata["training"])["step"]


def assert_same_parameters(model, expected):
    np.testing.assert_equal(dict(model.parameters), dict(expected.parameters))


# Output and files


def test_the_same_run_leaves_the_same_bytes(train, tmp_path, short_run):
    (tmp_path / "model").mkdir()  # an empty directory is taken
    assert train(*SHORT)[0] == 0
    assert contents(tmp_path / "model") == contents(short_run)


def test_the_files_of_a_run(short_run):
    assert sorted(contents(short_run)) == FILES
    assert evaluated_steps(short_run) == [0, 2, 4, 6]


def test_stderr_has_a_line_for_each_evaluation_on_held_out_text(train, short_run):
    """It has no bar, because it is not a terminal.

    short_run is the directory of an equal training, so its log has the same losses.
    """
    _, _, err = train(*SHORT)
    for evaluation, line in zip(evaluations(short_run), err.splitlines(), strict=True):
        step = evaluation["step"]
        loss = evaluation["val_loss"]
        assert re.match(rf"step +{step}: .*held out {loss:.4f} nats per", line)


def test_stdout_ends_with_the_model_and_its_loss(train, tmp_path, short_run):
    _, out, _ = train(*SHORT)
    first, second = out.splitlines()[-2:]
    assert first == f"{tmp_path / 'model'}: tied, 3,112 parameters, 270 tokens"
    lowest = min(evaluation["val_loss"] for evaluation in evaluations(short_run))
    assert second.startswith(f"held out: {lowest:.4f} nats per token, ")
    assert re.search(r", \S+ bits per byte, after step 6$", second)


def test_stdout_has_a_curve_of_the_losses(train, short_run):
    log = evaluations(short_run)
    losses = [evaluation["val_loss"] for evaluation in log]
    losses += [evaluation["loss"] for evaluation in log[1:]]  # step 0 has no training loss
    _, out, _ = train(*SHORT)
    rows = [line for line in out.splitlines() if "|" in line]
    assert rows[0].startswith(f"{max(losses):7.2f} |o"), "the model without training is the worst"
    assert any(row.startswith(f"{min(losses):7.2f} |") for row in rows)
    assert "".join(rows).count("o") == len(log), "a mark for each evaluation"
    assert "         o held out, . training: nats per token, by step\n" in out


def test_a_curve_of_equal_losses():
    """Its first and its last row are labelled with the highest and the lowest loss."""
    log = [{"step": 0, "val_loss": 2.0}, {"step": 1, "val_loss": 2.0}, {"step": 2, "val_loss": 2.0}]
    assert loss_curve(log).count("2.00 |") == 2


def test_json_of_a_text_from_stdin(train, tmp_path):
    code, out, _ = train(*SHORT, "--json", "--head", "untied", corpus="-", stdin=TEXT.encode())
    assert code == 0
    report = json.loads(out)
    assert report["model"] == str(tmp_path / "model")
    assert report["head"] == "untied"
    assert report["parameters"] == 3112 + 8 * 270, "those of the tied model, and W_U [8, 270]"
    assert report["steps"] == 6
    assert report["best_step"] == 6


def test_score_of_the_held_out_text_equals_the_loss_of_the_training(train, run):
    """The last tenth of the text is held out, and all its bytes are read."""
    _, out, _ = train(*SHORT, "--json")
    report = json.loads(out)
    held_out = TEXT[len(TEXT) * 9 // 10 :].encode()
    # The windows of an evaluation have 8 tokens, the context. Each begins with the last token of
    # the previous window, so that all tokens but the first are predicted: a stride of 7.
    score = answer(run, "score", "-m", report["model"], "--stride", "7", stdin=held_out)
    assert report["val_loss"] == pytest.approx(score["nll"], rel=1e-6)
    assert report["val_bits_per_byte"] == pytest.approx(score["bits_per_byte"], rel=1e-6)


@pytest.fixture
def evaluated_models(monkeypatch):
    """A list of the models that a SHORT training has evaluated, the second of which is the best."""
    held_out_losses = iter([3.0, 2.0, 4.0, 5.0])  # after the steps 0, 2, 4 and 6
    models = []

    def measure_tokens(model, *_):
        """A loss from the list, whatever the model is."""
        models.append(deepcopy(model))
        return [np.array([next(held_out_losses)])]

    monkeypatch.setattr(loop, "measure_tokens", measure_tokens)
    return models


def test_the_best_model_is_kept_when_later_ones_are_worse(train, tmp_path, evaluated_models):
    code, out, _ = train(*SHORT)
    assert code == 0
    assert out.endswith("after step 2\n")
    assert_same_parameters(tiedgpt.load_model(tmp_path / "model"), evaluated_models[1])


@pytest.mark.usefixtures("evaluated_models")
def test_an_evaluation_that_is_not_the_best_is_marked(train):
    _, _, err = train(*SHORT)
    is_marked = [line.endswith("(not the best)") for line in err.splitlines()]
    assert is_marked == [False, False, True, True]


def test_the_state_has_the_last_model_and_not_the_best_one(train, tmp_path, evaluated_models):
    assert train(*SHORT)[0] == 0
    state = safetensors.read_header(tmp_path / "model" / STATE)
    last = [array.ravel() for array in evaluated_models[3].parameters.values()]
    np.testing.assert_array_equal(state["parameters"].read(), np.concatenate(last))


def test_on_a_terminal_there_is_a_bar(tmp_path, corpus):
    """The bar overwrites no line about held-out text, and no note about Ctrl-C."""
    flags = ("--out", str(tmp_path / "model"), *FLAGS, "--steps", "1000000")
    with Terminal("train", corpus, *flags) as terminal:
        terminal.type("", until=" tokens/s]")
        terminal.type(CTRL_C)
        assert terminal.process.wait(timeout=60) == 130, terminal.text
    assert "held out: 100%" in terminal.text
    assert "/1000000 [" in terminal.text

    # After a carriage return, a line is overwritten. What follows the last one stays to be seen.
    lines = []
    for line in terminal.text.split("\n"):
        _overwritten, _, seen = line.rstrip("\r").rpartition("\r")
        lines.append(seen.rstrip())
    stopping = "tiedgpt: note: stopping after this step; again to stop"
    # The loss of step 0 is about log(270) = 5.6 nats, which is that of a uniform guess.
    assert any(line.startswith("step      0: held out 5.") for line in lines), lines
    assert any(line.startswith(stopping) for line in lines), lines
    assert any(line.startswith("tiedgpt: note: stopped after step") for line in lines), lines


# What a model starts as


def test_only_head_trains_the_output_matrix_alone(train, checkpoint, tmp_path):
    flags = ["--only", "head", "--steps", "2", "--context", "8", "--lr", "0.1"]
    assert train("--from", checkpoint, *flags)[0] == 0
    before = tiedgpt.load_model(checkpoint)
    after = tiedgpt.load_model(tmp_path / "model")
    assert not after.config.tied
    assert after.config.n_ctx == before.config.n_ctx, (
        "the training's context of 8 does not change it"
    )
    assert not np.array_equal(after.W_U, before.W_U)
    assert_same_parameters(after.tie(), before)


@pytest.mark.parametrize(
    ("vocab_size", "end_of_text"),
    [
        pytest.param(256, None, id="bytes"),
        pytest.param(257, 256, id="bytes-and-the-end-of-text"),
        pytest.param(258, 257, id="one-merge"),
    ],
)
def test_vocabularies_of_hardly_more_than_bytes(train, tmp_path, vocab_size, end_of_text):
    code, out, err = train(*SHORT, "--vocab-size", str(vocab_size))
    assert code == 0
    assert f"{vocab_size:,} tokens\n" in out
    assert "can be learned from the text" not in err
    config = tiedgpt.load_model(tmp_path / "model").config
    assert config.vocab_size == vocab_size
    assert config.bos_token_id == end_of_text
    assert config.eos_token_id == end_of_text
    assert config.n_ctx == 8


def test_a_vocabulary_has_no_more_tokens_than_the_text_gives(train, tmp_path):
    # The text gives 359 tokens: 256 bytes, 102 merges, and the end of a text, which is the last.
    code, out, err = train(*SHORT, "--vocab-size", "5000")
    assert code == 0
    assert "359 tokens\n" in out
    note = "note: only 359 tokens can be learned from the text: the vocabulary has no more\n"
    assert note in err
    config = tiedgpt.load_model(tmp_path / "model").config
    assert config.vocab_size == 359
    assert config.bos_token_id == 358
    assert config.eos_token_id == 358


def test_a_new_output_matrix_is_random(train, tmp_path):
    code, _, err = train(*FLAGS, "--head", "untied", *WITHOUT_LEARNING)
    assert code == 0
    assert "a copy of wte.T is used" not in err
    model = tiedgpt.load_model(tmp_path / "model")
    assert model.config.head == "untied"
    assert model.W_U.std() == pytest.approx(0.02, rel=0.05), "as GPT-2 starts"
    correlation = np.corrcoef(model.W_U.T.ravel(), model.W_E.ravel())[0, 1]
    assert abs(correlation) < 0.1


def test_an_output_matrix_starts_as_a_copy_of_a_tied_checkpoints(train, tmp_path, short_run):
    code, _, err = train("--from", str(short_run), "--head", "untied", *WITHOUT_LEARNING)
    assert code == 0
    assert "a copy of wte.T is used" in err
    before = tiedgpt.load_model(short_run)
    after = tiedgpt.load_model(tmp_path / "model")
    assert after.config.head == "untied"
    np.testing.assert_array_equal(after.W_E, before.W_E)
    np.testing.assert_array_equal(after.W_U, before.W_U)


def test_an_output_matrix_starts_as_that_of_an_untied_checkpoint(train, tmp_path, short_run):
    before = tiedgpt.load_model(short_run).untie("random", seed=5)
    tiedgpt.save_model(before, tiedgpt.load_tokenizer(short_run), tmp_path / "start")
    code, _, err = train("--from", str(tmp_path / "start"), "--head", "untied", *WITHOUT_LEARNING)
    assert code == 0
    assert "a copy of wte.T is used" not in err
    after = tiedgpt.load_model(tmp_path / "model")
    assert after.config.head == "untied"
    np.testing.assert_array_equal(after.W_E, before.W_E)
    np.testing.assert_array_equal(after.W_U, before.W_U)


def test_a_context_longer_than_the_checkpoints(train, checkpoint, tmp_path):
    message = "a context of 65 tokens exceeds the model's 64"
    assert_one_error_line(train("--from", checkpoint, "--context", "65"), message)
    assert list(tmp_path.iterdir()) == []


def test_dropout(train, tmp_path):
    assert train(*SHORT, "--dropout", "0.25")[0] == 0
    config = tiedgpt.load_model(tmp_path / "model").config
    assert config.embd_pdrop == 0.25
    assert config.resid_pdrop == 0.25
    assert config.attn_pdrop == 0


# Signals

SIGNALS = [
    pytest.param(signal.SIGINT, 130, id="SIGINT"),
    pytest.param(signal.SIGTERM, 143, id="SIGTERM"),
]


def send(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "code"), SIGNALS)
@pytest.mark.parametrize(
    ("step", "evaluated"),
    [
        pytest.param(1, [0], id="step-1"),
        pytest.param(4, [0, 2, 4], id="step-4"),  # the model is evaluated after it, and saved
    ],
)
@pytest.mark.usefixtures("interruptible")
def test_a_signal_saves(number, code, step, evaluated, train, tmp_path, at_step):
    at_step(step, lambda: send(number))
    ended, out, err = train(*SHORT)
    assert ended == code
    assert f"tiedgpt: note: stopped after step {step}; continue with --resume\n" in err
    assert out.endswith(f"after step {evaluated[-1]}\n")
    assert evaluated_steps(tmp_path / "model") == evaluated
    assert saved_step(tmp_path / "model") == step


@pytest.mark.parametrize(("number", "code"), SIGNALS)
@pytest.mark.usefixtures("interruptible")
def test_a_signal_leaves_the_handler_of_ctrl_c_as_it_was(number, code, train, at_step):
    handler = signal.getsignal(signal.SIGINT)
    at_step(1, lambda: send(number))
    assert train(*SHORT)[0] == code
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize(
    ("step", "has_curve"),
    [
        pytest.param(1, False, id="one-evaluation"),
        pytest.param(4, True, id="three-evaluations"),
    ],
)
@pytest.mark.usefixtures("interruptible")
def test_a_curve_needs_two_evaluations(step, has_curve, train, at_step):
    at_step(step, lambda: send(signal.SIGINT))
    _, out, _ = train(*SHORT)
    assert ("|" in out) == has_curve
    if not has_curve:
        assert out.count("\n") == 2


@pytest.mark.parametrize(("number", "code"), SIGNALS)
@pytest.mark.parametrize("step", [1, 4])
@pytest.mark.usefixtures("interruptible")
def test_a_run_that_a_signal_stopped_goes_on(
    number, code, step, train, tmp_path, at_step, short_run
):
    at_step(step, lambda: send(number))
    assert train(*SHORT)[0] == code
    assert train("--resume")[0] == 0
    assert contents(tmp_path / "model") == contents(short_run)


@pytest.mark.parametrize(
    ("number", "code", "shown"),
    [
        pytest.param(signal.SIGINT, 130, "\n", id="SIGINT"),
        pytest.param(signal.SIGTERM, 143, "", id="SIGTERM"),
    ],
)
@pytest.mark.usefixtures("interruptible")
def test_a_second_signal_ends_it_at_once(number, code, shown, train, tmp_path, at_step):
    def send_two():
        send(signal.SIGTERM)
        send(number)

    at_step(4, send_two)
    assert train(*SHORT, "-q") == (code, "", shown)
    assert saved_step(tmp_path / "model") == 2, "the last save before step 4"
    assert sorted(contents(tmp_path / "model")) == FILES
    assert tiedgpt.load_model(tmp_path / "model")


@pytest.mark.usefixtures("interruptible")
def test_a_signal_that_is_ignored_stays_so(train, at_step):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    at_step(3, lambda: send(signal.SIGINT))
    assert train(*SHORT)[0] == 0
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


# An error in mid-training leaves the model of the last save


def assert_model_of_step_0(directory):
    assert evaluated_steps(directory) == [0]
    for array in tiedgpt.load_model(directory).parameters.values():
        assert np.isfinite(array).all()


@pytest.mark.parametrize("lr", ["1e9", "1e300"])
def test_a_learning_rate_that_is_too_high(train, tmp_path, lr):
    code, out, err = train(*SHORT, "--lr", lr)
    assert (code, out) == (2, "")
    last_line = err.splitlines()[-1]
    assert last_line.startswith("tiedgpt: error: step 2 has loss ")
    kept = f"too high for this model; {tmp_path / 'model'} holds the model of step 0"
    assert last_line.endswith(kept)
    assert_model_of_step_0(tmp_path / "model")


def test_a_disk_that_is_full(train, tmp_path, at_step, monkeypatch):
    def save(*_):
        raise CheckpointError("the disk is full")

    at_step(2, lambda: monkeypatch.setattr(Trainer, "save", save))
    code, out, err = train(*SHORT)
    assert (code, out) == (2, "")
    kept = f"{tmp_path / 'model'} holds the model of step 0"
    assert err.splitlines()[-1] == f"tiedgpt: error: the disk is full; {kept}"
    assert_model_of_step_0(tmp_path / "model")


def test_memory_that_is_not_enough(train, tmp_path, at_step):
    at_step(2, lambda: np.empty((1 << 50, 8)))  # it raises MemoryError
    code, out, err = train(*SHORT)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == (
        "tiedgpt: error: not enough memory for a batch of 3 sequences of 8 tokens; "
        "use a smaller --batch"
    )
    assert_model_of_step_0(tmp_path / "model")


# --resume


def test_resume_of_a_run_that_is_done_changes_nothing(train, tmp_path, monkeypatch):
    """The directory has the name of the model gpt2, but that model is not looked for."""
    monkeypatch.chdir(tmp_path)
    assert train(*SHORT, out="gpt2")[0] == 0
    before = contents(tmp_path / "gpt2")
    code, out, err = train("--resume", out="gpt2")
    assert code == 0
    assert err == "tiedgpt: note: all 6 steps are done; give a larger --steps to train more\n"
    assert out.endswith("after step 6\n")
    assert contents(tmp_path / "gpt2") == before


def test_a_run_that_is_done_goes_on_with_more_steps(train, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train(*SHORT, out="gpt2")[0] == 0
    _, out, _ = train("--resume", "--steps", "8", out="gpt2")
    assert "\ngpt2: tied, 3,112 parameters" in out
    assert evaluated_steps(tmp_path / "gpt2") == [0, 2, 4, 6, 8]


def test_resume_takes_the_same_flags_again(train, tmp_path):
    assert train(*SHORT, "--steps", "4")[0] == 0
    defaults = ["--lr", "0.003", "--dropout", "0.1", "--head", "tied", "--seed", "1"]
    assert train(*SHORT, *defaults, "--resume")[0] == 0
    assert evaluated_steps(tmp_path / "model") == [0, 2, 4, 6]


def test_resume_takes_the_same_checkpoint_again(train, short_run):
    flags = ["--from", str(short_run), *WITHOUT_LEARNING]
    assert train(*flags)[0] == 0
    assert train(*flags, "--resume")[0] == 0


CHANGES = [
    pytest.param(
        ["--batch", "4"],
        "--batch cannot change with --resume: it was 3, now it is 4",
        id="batch",
    ),
    pytest.param(
        ["--vocab-size", "271"],
        "--vocab-size cannot change with --resume: it was 270, now it is 271",
        id="vocab-size",
    ),
    pytest.param(
        ["--head", "untied"],
        "--head cannot change with --resume: it was tied, now it is untied",
        id="head",
    ),
    pytest.param(
        ["--from", "gpt2"],
        "--from cannot change with --resume: it was not given, now it is gpt2",
        id="from",
    ),
    pytest.param(
        ["--only", "head"],
        "--only cannot change with --resume: it was not given, now it is head",
        id="only",
    ),
    pytest.param(["--n-layer", "9"], "--n-layer cannot change with --resume", id="n-layer"),
    pytest.param(
        ["--eval-every", "9"], "--eval-every cannot change with --resume", id="eval-every"
    ),
    pytest.param(["--lr", "9"], "--lr cannot change with --resume", id="lr"),
    pytest.param(["--dropout", "0"], "--dropout cannot change with --resume", id="dropout"),
    pytest.param(
        ["--steps", "5"],
        "6 steps are done already; steps must be at least that, got 5",
        id="fewer-steps",
    ),
]


@pytest.mark.parametrize(("flags", "message"), CHANGES)
def test_what_would_change_a_run_is_refused(train, short_run, flags, message):
    before = contents(short_run)
    assert_one_error_line(train("--resume", *flags, out=str(short_run)), message)
    assert contents(short_run) == before


def test_a_new_run_where_there_is_one_is_refused(train, short_run):
    before = contents(short_run)
    message = "model holds a training already: add --resume to continue it"
    assert_one_error_line(train(out=str(short_run)), message)
    assert contents(short_run) == before


def test_resume_with_another_text_is_refused(train):
    assert train(*SHORT)[0] == 0
    other_text = TEXT.replace("often", "often ").encode()
    result = train("--resume", corpus="-", stdin=other_text)
    assert_one_error_line(result, "was trained on another text: give the same text again\n")


def test_resume_from_a_damaged_state_is_refused(train, tmp_path):
    assert train(*SHORT)[0] == 0
    state = tmp_path / "model" / STATE
    state.write_bytes(state.read_bytes()[:-100])
    assert_one_error_line(train("--resume"), f"{state}: truncated")


def test_resume_without_a_state_is_refused(train, tmp_path):
    assert train(*SHORT)[0] == 0
    (tmp_path / "model" / STATE).unlink()
    assert_one_error_line(train("--resume"), "model holds no training to continue")


@pytest.mark.parametrize("flags", [SHORT, ["--resume"]], ids=["new", "resumed"])
def test_a_second_training_in_the_directory_is_refused(train, tmp_path, short_run, at_step, flags):
    """The first training ends as if there had been no second one."""
    results_of_the_second = []
    at_step(3, lambda: results_of_the_second.append(train(*flags)))
    assert train(*SHORT)[0] == 0
    assert contents(tmp_path / "model") == contents(short_run)
    assert len(results_of_the_second) == 1
    code, _, err = results_of_the_second[0]
    assert code == 2
    message = f"model is in use by process {os.getpid()}; wait, or choose another directory"
    assert message in err
