"""`tiedgpt train`: output, files, signals, --resume, kills."""

import codecs
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from support.checks import contents
from support.commands import answer, assert_one_error_line, command
from support.models import CONFIG, random_model
from support.terminal import CTRL_C, Terminal

import tiedgpt
from tiedgpt import cli
from tiedgpt.checkpoints import safetensors
from tiedgpt.cli.train import evaluation_line, stop_signals
from tiedgpt.training import loop
from tiedgpt.training.loop import Trainer
from tiedgpt.training.saving import LOG, STATE

pytestmark = pytest.mark.usefixtures("one_reading_thread")

# A text with a byte order mark inside, NULs and CRs, which are read as any other character.
TEXT = " \ufeff" + "".join(
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

    def train(*flags, corpus=corpus, out=tmp_path / "model", stdin=b""):
        return run("train", corpus, "--out", str(out), *flags, stdin=stdin)

    return train


@pytest.fixture
def resume(run, corpus, tmp_path):
    """resume(*flags) -> (exit code, stdout, stderr) of `train CORPUS --resume tmp_path/model`."""

    def resume(*flags, corpus=corpus, out=tmp_path / "model", stdin=b""):
        return run("train", corpus, "--resume", str(out), *flags, stdin=stdin)

    return resume


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


@pytest.mark.filterwarnings("always::tiedgpt.errors.TiedGPTWarning")
def test_a_byte_order_mark_before_the_text_is_no_part_of_it(train, short_run, tmp_path):
    corpus = tmp_path / "marked.txt"
    corpus.write_bytes(codecs.BOM_UTF8 + TEXT.encode())
    code, _, err = train(*SHORT, corpus=str(corpus))
    assert code == 0
    assert f"note: {corpus} begins with a byte order mark" in err
    for name in ("merges.txt", "model.safetensors"):
        assert (tmp_path / "model" / name).read_bytes() == (short_run / name).read_bytes()


def evaluations(directory):
    """The lines of the log."""
    return [json.loads(line) for line in (directory / LOG).read_text().splitlines()]


def evaluated_steps(directory):
    return [evaluation["step"] for evaluation in evaluations(directory)]


def saved_state(directory):
    """What the state holds beside its tensors."""
    _, metadata = safetensors.read_header(directory / STATE)
    return json.loads(metadata["training"])


def assert_same_parameters(model, expected):
    np.testing.assert_equal(dict(model.parameters), dict(expected.parameters))


# Output and files


def test_the_same_run_leaves_the_same_bytes(train, tmp_path, short_run):
    (tmp_path / "model").mkdir()  # an empty directory is taken
    assert train(*SHORT)[0] == 0
    assert contents(tmp_path / "model") == contents(short_run)
    assert sorted(contents(short_run)) == FILES
    assert evaluated_steps(short_run) == [0, 2, 4, 6]


def test_stderr_has_a_line_for_each_evaluation_and_stdout_the_result(train, tmp_path, short_run):
    """short_run is the directory of an equal training, so its log has the same losses."""
    _, out, err = train(*SHORT)
    log = evaluations(short_run)
    for evaluation, line in zip(log, err.splitlines(), strict=True):
        step = evaluation["step"]
        loss = evaluation["val_loss"]
        assert re.match(rf"step +{step}: .*held out {loss:.4f} nats per", line)
    first, second = out.splitlines()
    assert first == f"{tmp_path / 'model'}: tied, 3,112 parameters, 270 tokens"
    lowest = min(evaluation["val_loss"] for evaluation in log)
    assert second.startswith(f"held out: {lowest:.4f} nats per token, ")
    assert re.search(r", \S+ bits per byte, after step 6$", second)


def test_json_of_a_text_from_stdin(train, tmp_path, monkeypatch):
    seconds = iter([100.0, 101.24])  # at the beginning and the end
    clock = SimpleNamespace(monotonic=lambda: next(seconds))
    monkeypatch.setattr("tiedgpt.cli.train.time", clock)
    code, out, _ = train(*SHORT, "--json", "--head", "untied", corpus="-", stdin=TEXT.encode())
    assert code == 0
    report = json.loads(out)
    assert report["model"] == str(tmp_path / "model")
    assert report["head"] == "untied"
    assert report["parameters"] == 3112 + 8 * 270, "those of the tied model, and W_U [8, 270]"
    assert report["steps"] == 6
    assert report["best_step"] == 6
    assert report["seconds"] == 1.2
    assert report["evaluations"] == evaluations(tmp_path / "model")


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


def test_the_best_model_and_the_last_one_are_kept(train, tmp_path, monkeypatch):
    """The checkpoint has the model with the lowest loss, the state that of the last step."""
    held_out_losses = iter([3.0, 2.0, 4.0, 5.0])  # after the steps 0, 2, 4 and 6
    evaluated = []

    def measure_tokens(model, *_):
        evaluated.append(deepcopy(model))
        return [np.array([next(held_out_losses)])]

    monkeypatch.setattr(loop, "measure_tokens", measure_tokens)
    code, out, err = train(*SHORT)
    assert code == 0
    assert out.endswith("after step 2\n")
    is_marked = [line.endswith("(not the best)") for line in err.splitlines()]
    assert is_marked == [False, False, True, True]
    assert_same_parameters(tiedgpt.load_model(tmp_path / "model"), evaluated[1])
    state, _ = safetensors.read_header(tmp_path / "model" / STATE)
    last = [array.ravel() for array in evaluated[3].parameters.values()]
    np.testing.assert_array_equal(state["parameters"].values(copy=True), np.concatenate(last))


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
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
    # The loss of step 0 is about log(270) = 5.6 nats, which is that of a uniform guess.
    for beginning in (
        "step      0: held out 5.",
        "tiedgpt: note: stopping after this step; again to stop",
        "tiedgpt: note: stopped after step",
    ):
        assert any(line.startswith(beginning) for line in lines), lines


def test_the_bar_begins_at_what_is_done_and_each_evaluation_at_0(
    resume, short_run, tmp_path, monkeypatch
):
    shutil.copytree(short_run, tmp_path / "model")
    screen = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", screen)
    assert resume("--steps", "10")[0] == 0
    shown = screen.buffer.getvalue().decode()
    assert "| 6/10 [" in shown
    assert "| 0/10 [" not in shown
    percents = [int(percent) for percent in re.findall(r"held out: (\d+)%", shown)]
    assert len(percents) > 1
    assert max(percents) == 100
    assert re.search(r"\| 10/10 \[.* loss \d\.\d{3}, [\d,]+ tokens/s\]", shown)


def test_the_line_of_an_evaluation():
    """One is marked if an earlier one is better, and not if it is as good."""
    evaluations = [{"step": 0, "val_loss": 2.0}, {"step": 12_345, "loss": 2.5, "val_loss": 2.0}]
    trainer = SimpleNamespace(evaluations=evaluations)
    line = "step 12,345: loss 2.5000, held out 2.0000 nats per token, 3.000 bits per byte"
    assert evaluation_line(trainer, 1.5) == line
    evaluations[0]["val_loss"] = 1.9999
    assert evaluation_line(trainer, 1.5) == f"{line} (not the best)"


@pytest.mark.parametrize(("lr", "has_note"), [("30", True), ("0.003", False)])
def test_a_note_says_that_a_training_has_not_lowered_the_loss(train, tmp_path, lr, has_note):
    code, out, err = train(*SHORT, "--lr", lr)
    assert code == 0
    assert out.endswith("after step 0\n") == has_note
    note = (
        f"training has not lowered the held-out loss: {tmp_path / 'model'} holds the model before "
        f"step 1; try another --lr than {lr}\n"
    )
    assert (note in err) == has_note


# What a model starts as


def test_only_head_trains_the_output_matrix_alone(train, checkpoint, tmp_path):
    flags = ["--only", "head", "--steps", "2", "--context", "8", "--lr", "0.1"]
    code, _, err = train("--from", checkpoint, *flags)
    assert code == 0
    assert "a copy of wte.T is used; it is trained as a matrix of its own\n" in err
    before = tiedgpt.load_model(checkpoint)
    after = tiedgpt.load_model(tmp_path / "model")
    assert not after.config.tied
    assert after.config.n_ctx == before.config.n_ctx, (
        "the training's context of 8 does not change it"
    )
    assert not np.array_equal(after.W_U, before.W_U)
    assert_same_parameters(after.tie(), before)


@pytest.mark.parametrize(("n_ctx", "context"), [(64, 64), (300, 256)])
def test_settings_of_a_training_from_a_checkpoint(train, save, tmp_path, n_ctx, context):
    """By default they are those of the help page."""
    path = save("start", random_model(replace(CONFIG, n_ctx=n_ctx)))
    (tmp_path / "start" / "chat_template.jinja").write_text("{{ messages }}")
    assert train("--from", path, "--steps", "1", "--eval-every", "9")[0] == 0
    settings = saved_state(tmp_path / "model")["settings"]
    assert (settings["batch"], settings["lr"], settings["context"]) == (4, 0.0001, context)
    assert (settings["steps"], settings["eval_every"]) == (1, 9)
    assert (tmp_path / "model" / "chat_template.jinja").read_text() == "{{ messages }}"


@pytest.mark.parametrize(
    ("vocab_size", "tokens", "end_of_text"),
    [
        pytest.param(256, 256, None, id="bytes"),
        pytest.param(257, 257, 256, id="bytes-and-the-end-of-text"),
        pytest.param(258, 258, 257, id="one-merge"),
        # The text gives 102 merges.
        pytest.param(5000, 359, 358, id="more-than-the-text-gives"),
    ],
)
def test_the_vocabulary_of_a_new_model(train, tmp_path, vocab_size, tokens, end_of_text):
    code, out, err = train(*SHORT, "--vocab-size", str(vocab_size))
    assert code == 0
    assert f"{tokens} tokens\n" in out
    note = (
        "tiedgpt: note: the vocabulary has 359 tokens, not 5000: in the text, no other two "
        "neighbouring tokens of a word occur twice\n"
    )
    assert (note in err) == (tokens == 359)
    assert ("the vocabulary has" in err) == (tokens == 359)
    config = tiedgpt.load_model(tmp_path / "model").config
    assert config.vocab_size == tokens
    assert config.bos_token_id == end_of_text
    assert config.eos_token_id == end_of_text
    assert config.n_ctx == 8


def test_the_vocabulary_is_learned_from_the_text_to_train_on_alone(train, tmp_path):
    """The held-out tenth of the text is one word again and again, which no merge knows."""
    text = "low lower " * 90 + "zq" * 50
    assert train(*SHORT, corpus="-", stdin=text.encode())[0] == 0
    merges = tiedgpt.load_tokenizer(tmp_path / "model").merges
    assert ("l", "o") in merges
    assert ("z", "q") not in merges


def test_a_new_output_matrix_is_random(train, tmp_path):
    code, _, err = train(*FLAGS, "--head", "untied", *WITHOUT_LEARNING)
    assert code == 0
    assert "a copy of wte.T is used" not in err
    model = tiedgpt.load_model(tmp_path / "model")
    assert model.config.head == "untied"
    assert model.W_U.std() == pytest.approx(0.02, rel=0.05), "as GPT-2 starts"
    correlation = np.corrcoef(model.W_U.T.ravel(), model.W_E.ravel())[0, 1]
    assert abs(correlation) < 0.1


@pytest.mark.parametrize("is_tied", [True, False])
def test_an_output_matrix_starts_as_that_of_the_checkpoint(train, tmp_path, short_run, is_tied):
    """That of a tied checkpoint is wte.T, which a note says."""
    before = tiedgpt.load_model(short_run)
    source = short_run
    if not is_tied:
        before = before.untie("random", seed=5)
        source = tmp_path / "start"
        tiedgpt.save_model(before, tiedgpt.load_tokenizer(short_run), source)
    code, _, err = train("--from", str(source), "--head", "untied", *WITHOUT_LEARNING)
    assert code == 0
    assert ("a copy of wte.T is used" in err) == is_tied
    after = tiedgpt.load_model(tmp_path / "model")
    assert after.config.head == "untied"
    np.testing.assert_array_equal(after.W_E, before.W_E)
    np.testing.assert_array_equal(after.W_U, before.W_U)


@pytest.mark.parametrize("rate", [0.25, 0])
def test_dropout(train, tmp_path, rate):
    assert train(*FLAGS, *WITHOUT_LEARNING, "--dropout", str(rate))[0] == 0
    config = tiedgpt.load_model(tmp_path / "model").config
    assert (config.embd_pdrop, config.resid_pdrop, config.attn_pdrop) == (rate, rate, 0)


def test_the_size_of_the_first_weights(train, tmp_path):
    assert train(*FLAGS, *WITHOUT_LEARNING, "--initializer-range", "0.5")[0] == 0
    model = tiedgpt.load_model(tmp_path / "model")
    assert model.config.initializer_range == 0.5
    assert model.parameters["wte.weight"].std() == pytest.approx(0.5, rel=0.1)


# Refusals


# Flags -> what the error names. test_train.py has all ranges of Settings.
REFUSED = [
    (["--n-head", "3"], "--n-embd 128 does not divide"),
    (["--n-layer", "-1"], "--n-layer must be a whole number"),
    (["--n-head", "2147483648"], "--n-head must be a whole number"),
    (["--n-embd", "1000000000"], "n_inner must be a whole number"),
    (["--n-embd", "x"], "--n-embd: expected a whole number, got 'x'"),
    (["--vocab-size", "10"], "--vocab-size must be a whole number of at least 256"),
    (["--initializer-range", "-1"], "--initializer-range must be a number from 0 to 1e+37"),
    (["--batch", "0"], "--batch must be a whole number from 1"),
    (["--steps", "1.5"], "--steps: expected a whole number"),
    (["--context", "1"], "--context must be a whole number from 2"),
    (["--lr", "nan"], "--lr must be a number above 0"),
    (["--dropout", "1.5"], "--dropout must be a number of at least 0 and below 1"),
    (["--eval-every", "-1"], "--eval-every must be a whole number"),
    (["--only", "head"], "--only head needs --from"),
    (["--from", "MODEL", "--batch", "0"], "--batch must be"),
    (["--from", "MODEL", "--context", "65"], "a context of 65 tokens exceeds the model's 64"),
    (["--from", "MODEL", "--only", "head", "--head", "tied"], "a tied model has no separate head"),
    (["--from", "MODEL", "--only", "head", "--dropout", "0"], "--dropout has no effect"),
    (["--from", "MODEL", "--n-layer", "1"], "--n-layer cannot be given with --from"),
    (["--from", "MODEL", "--vocab-size", "300"], "--vocab-size cannot be given with --from"),
    (["--resume", "MODEL"], "--resume: not allowed with argument --out"),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED)
def test_flags_that_are_refused(train, checkpoint, tmp_path, flags, message):
    flags = [checkpoint if flag == "MODEL" else flag for flag in flags]
    assert_one_error_line(train(*flags), message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "the text to train on must have at least 9 tokens"),
        (b"ab cd ef g", "the held-out text must have at least 2 tokens"),
        (b"caf\xe9", "stdin is not UTF-8 text at byte 3"),
        (b"<|endoftext|>To be or not", "the text holds <|endoftext|>; to read it as that token"),
    ],
)
def test_texts_that_are_refused(train, tmp_path, text, message):
    result = train("--context", "8", corpus="-", stdin=text)
    assert_one_error_line(result, message)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_new_is_refused_before_the_text_is_read(
    train, short_run, checkpoint, tmp_path
):
    (tmp_path / "file").touch()
    before = contents(short_run)
    for out, message in [
        (short_run, f"holds a training already; to continue it, give --resume {short_run}"),
        (checkpoint, "is not empty"),
        (tmp_path / "file", "is a file"),
    ]:
        assert_one_error_line(train(corpus="not-there", out=out), message)
    assert contents(short_run) == before


@pytest.mark.parametrize("lr", ["1e9", "1e300"])
def test_a_learning_rate_that_is_too_high(train, tmp_path, lr):
    """The directory keeps the model of step 0."""
    code, out, err = train(*SHORT, "--lr", lr)
    assert (code, out) == (2, "")
    last_line = err.splitlines()[-1]
    assert last_line.startswith("tiedgpt: error: step 2 has loss ")
    kept = f"too high for this model; {tmp_path / 'model'} holds the model of step 0"
    assert last_line.endswith(kept)
    assert evaluated_steps(tmp_path / "model") == [0]
    for array in tiedgpt.load_model(tmp_path / "model").parameters.values():
        assert np.isfinite(array).all()


@pytest.mark.parametrize("deviation", ["1e10", "1e37", "1e39"])
def test_first_weights_that_are_too_large(train, tmp_path, deviation):
    """The layer norm overflows, and then float32 itself. No checkpoint is damaged."""
    code, out, err = train(*SHORT, "--initializer-range", deviation)
    assert (code, out) == (2, "")
    assert "damaged" not in err
    if deviation == "1e39":
        assert "--initializer-range must be a number from 0 to 1e+37, got 1e+39" in err
    else:
        assert err.endswith("the model's weights are too large\n")
    assert not (tmp_path / "model").exists()


# Signals


def send(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("number", "step", "evaluated"),
    [
        pytest.param(signal.SIGINT, 1, [0]),
        pytest.param(signal.SIGTERM, 4, [0, 2, 4]),  # the model is evaluated after it, and saved
        pytest.param(signal.SIGTERM, 1, [0], marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 4, [0, 2, 4], marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("interruptible")
def test_a_signal_saves_and_the_run_can_go_on(
    number, step, evaluated, train, resume, at_step, tmp_path, short_run
):
    at_step(step, lambda: send(number))
    handler = signal.getsignal(signal.SIGINT)
    code, out, err = train(*SHORT)
    assert code == 128 + number
    assert signal.getsignal(signal.SIGINT) is handler
    line = f"tiedgpt train \\S+/corpus.txt --resume {tmp_path / 'model'}"
    assert re.search(f"note: stopped after step {step}; continue with: {line}\n", err)
    assert out.endswith(f"after step {evaluated[-1]}\n")
    assert evaluated_steps(tmp_path / "model") == evaluated
    assert saved_state(tmp_path / "model")["step"] == step
    assert resume()[0] == 0
    assert contents(tmp_path / "model") == contents(short_run)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("interruptible")
def test_the_first_signal_is_answered_at_once(number, capfd):
    """Then both signals are again what they were before."""
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with stop_signals() as signals:
        send(number)
        after = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    assert signals == [number]
    assert after == before
    note = "tiedgpt: note: stopping after this step; again to stop at once"
    assert capfd.readouterr().err == f"\n{note}\n"


@pytest.mark.usefixtures("interruptible")
def test_the_command_that_goes_on_reads_stdin_if_the_first_one_did(run, tmp_path, at_step):
    at_step(1, lambda: send(signal.SIGTERM))
    _, _, err = run("train", "--out", str(tmp_path / "model"), *SHORT, stdin=TEXT.encode())
    assert f"continue with: tiedgpt train - --resume {tmp_path / 'model'}\n" in err


@pytest.mark.usefixtures("interruptible")
def test_the_command_that_goes_on_reads_special_tokens_if_the_first_one_did(train, at_step):
    at_step(1, lambda: send(signal.SIGTERM))
    _, _, err = train(*SHORT, "--allow-special")
    assert re.search("continue with: tiedgpt train .* --allow-special\n", err)
    # After one step there is one evaluation, that of the start, and nothing to compare it with.
    assert "has not lowered" not in err


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
    assert saved_state(tmp_path / "model")["step"] == 2, "the last save before step 4"
    assert sorted(contents(tmp_path / "model")) == FILES
    assert tiedgpt.load_model(tmp_path / "model")


@pytest.mark.usefixtures("interruptible")
def test_json_has_the_steps_that_were_done_before_a_signal(train, at_step):
    at_step(3, lambda: send(signal.SIGTERM))
    code, out, _ = train(*SHORT, "--json")
    assert code == 143
    assert json.loads(out)["steps"] == 3


@pytest.mark.usefixtures("interruptible")
def test_a_signal_that_is_ignored_stays_so(train, at_step):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    at_step(3, lambda: send(signal.SIGINT))
    code, out, _ = train(*SHORT, "--json")
    assert (code, json.loads(out)["steps"]) == (0, 6), "the training goes on"
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


# --resume


def test_resume_of_a_run_that_is_done_changes_nothing(resume, short_run, tmp_path, monkeypatch):
    """The directory has the name of the model gpt2, but that model is not looked for."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(short_run, "gpt2")
    before = contents(tmp_path / "gpt2")
    code, out, err = resume(out="gpt2")
    assert code == 0
    assert err == "tiedgpt: note: all 6 steps are done; give a larger --steps to train more\n"
    assert out.endswith("after step 6\n")
    assert contents(tmp_path / "gpt2") == before


def test_a_run_that_is_done_goes_on_with_more_steps(resume, short_run, tmp_path):
    shutil.copytree(short_run, tmp_path / "model")
    _, out, _ = resume("--steps", "8", "--json")
    assert json.loads(out)["steps"] == 8
    assert evaluated_steps(tmp_path / "model") == [0, 2, 4, 6, 8]


RESUME_REFUSED = [
    (["--steps", "5"], "--steps must be at least the 6 that are done, got 5"),
    (["--steps", "0"], "--steps must be a whole number from 1"),
]
KEPT = "--batch 3, --lr 9, --context 8, --seed 1, --eval-every 9, --n-layer 1, --vocab-size 270"
KEPT += ", --initializer-range 0.1"
KEPT += ", --dropout 0, --head tied, --from gpt2, --only head"
for flag_and_value in KEPT.split(", "):
    flag, value = flag_and_value.split()
    RESUME_REFUSED.append(([flag, value], f"{flag} cannot be given with --resume"))


@pytest.mark.parametrize(("flags", "message"), RESUME_REFUSED)
def test_flags_that_are_refused_with_resume(resume, short_run, flags, message):
    before = contents(short_run)
    assert_one_error_line(resume(*flags, out=short_run), message)
    assert contents(short_run) == before


def test_what_cannot_be_resumed(resume, short_run, tmp_path):
    assert_one_error_line(resume(), "model holds no training to continue")
    shutil.copytree(short_run, tmp_path / "model")
    other_text = TEXT.replace("often", "often ").encode()
    assert_one_error_line(resume(corpus="-", stdin=other_text), "trained on another text")
    special_text = f"<|endoftext|>{TEXT}".encode()
    hint = "the text holds <|endoftext|>; to read it as that token, add --allow-special\n"
    assert_one_error_line(resume(corpus="-", stdin=special_text), hint)
    state = tmp_path / "model" / STATE
    state.write_bytes(state.read_bytes()[:-100])
    assert_one_error_line(resume(), f"{state}: damaged: truncated")


@pytest.mark.slow
def test_kills_at_random_moments_lose_nothing(tmp_path, corpus, short_run):
    """A training is killed and resumed until it is done. Its directory is complete or absent."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    flags = [*FLAGS, "--steps", "60", "--eval-every", "1"]
    whole = tmp_path / "whole"
    start = time.monotonic()
    subprocess.run(command("train", corpus, "--out", str(whole), *flags), env=environment)
    seconds = time.monotonic() - start
    rng = random.Random(1)
    n_kills = 0
    for trial in range(60):
        # Few of 5 trials are killed if the machine was busier when the first run was timed.
        if trial >= 5 and n_kills > 5:
            break
        out = tmp_path / f"out{trial}"
        while not out.exists() or saved_state(out)["step"] < 60:
            words = ["--out", str(out), *flags]
            if out.exists():
                tiedgpt.load_model(out)
                tiedgpt.load_tokenizer(out)
                words = ["--resume", str(out)]
            process = subprocess.Popen(command("train", "-q", corpus, *words), env=environment)
            try:
                process.wait(timeout=rng.uniform(0.2, 1.1) * seconds)
            except subprocess.TimeoutExpired:
                n_kills += 1
                process.kill()
            assert process.wait() in (0, -signal.SIGKILL)
        subprocess.run(command("train", "-q", corpus, "--resume", str(out)), env=environment)
        assert contents(out) == contents(whole), f"trial {trial}"
        left = [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
        assert left == []
    assert n_kills > 5
