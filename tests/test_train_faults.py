"""What a training says when it fails, or does not lower the held-out loss.

A damaged model is one with a nan in its parameters.
"""

from dataclasses import replace

import numpy as np
import pytest
from support.commands import assert_one_error_line
from support.models import SMALL, random_model

import tiedgpt
from tiedgpt import GPT2, Tokenizer
from tiedgpt.errors import TiedGPTError
from tiedgpt.training.loop import Trainer
from tiedgpt.training.settings import Settings

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = Settings(steps=40, batch=2, context=5, eval_every=2, threads=1)
RARE = 100  # a token of SMALL that is neither in TOKENS nor in HELD_OUT, whose ids are lower
TOKENS = np.random.default_rng(1).integers(0, RARE, 60)
HELD_OUT = np.random.default_rng(2).integers(0, RARE, 20)
TEXT = b"To be, or not to be, that is the question. " * 9


def with_nan(model: GPT2, name: str, row: int) -> GPT2:
    """The model with a nan in one row of a parameter."""
    array = model.parameters[name].copy()
    array[row] = np.nan
    return GPT2(model.config, {**model.parameters, name: array})


def train(trainer: Trainer) -> None:
    """Run the trainer to its end."""
    for _ in trainer.run():
        pass


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_damaged_model_is_named_before_the_first_step():
    damaged = with_nan(random_model(), "ln_f.bias", row=3)
    trainer = Trainer(damaged, TOKENS, HELD_OUT, SETTINGS)
    message = r"^the held-out loss after step 0 is nan: the model's checkpoint is damaged$"
    with pytest.raises(TiedGPTError, match=message):
        train(trainer)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize(
    ("places", "step"),
    [
        pytest.param(slice(0, None, 2), 1, id="every-second-place-so-in-the-first-batch"),
        pytest.param(slice(40, 41), "[2-9]", id="one-place-so-in-a-later-batch"),
    ],
)
def test_a_damaged_embedding_is_named_at_the_step_that_first_reads_its_token(places, step):
    """The embedding of the token RARE is damaged, and RARE is at `places` of the training text.

    The held-out text does not have RARE. The model is untied, because in a tied model the damaged
    row would also be in W_U, and so in every loss.
    """
    tokens = TOKENS.copy()
    tokens[places] = RARE
    model = with_nan(random_model(replace(SMALL, tied=False)), "wte.weight", row=RARE)
    trainer = Trainer(model, tokens, HELD_OUT, SETTINGS)
    message = f"^step {step} has loss nan, .*: the model's checkpoint is damaged$"
    with pytest.raises(TiedGPTError, match=message):
        train(trainer)


def test_the_command_names_a_damaged_checkpoint(run, tmp_path):
    tokenizer = Tokenizer([])
    config = replace(SMALL, vocab_size=tokenizer.vocab_size)
    damaged = with_nan(random_model(config), "ln_f.bias", row=3)
    tiedgpt.save_model(damaged, tokenizer, tmp_path / "from")
    flags = ["--from", str(tmp_path / "from"), "--context", "8", "--steps", "2"]
    result = run("train", "-", "--out", str(tmp_path / "out"), *flags, stdin=TEXT)
    assert_one_error_line(result, "after step 0 is nan: the model's checkpoint is damaged\n")


NO_GAIN = "tiedgpt: note: training has not lowered the held-out loss: "


@pytest.fixture
def train_small(run, tmp_path):
    """train_small(*flags) -> (exit code, stdout, stderr) of a short `train`."""

    def train_small(*flags):
        shape = ["--n-layer", "1", "--n-embd", "8", "--context", "8"]
        out = str(tmp_path / "out")
        return run("train", "-", "--out", out, *shape, *flags, stdin=TEXT)

    return train_small


def test_a_note_says_that_a_learning_rate_of_30_has_not_lowered_the_loss(train_small, tmp_path):
    code, out, err = train_small("--steps", "4", "--lr", "30")
    assert code == 0
    assert out.endswith("after step 0\n")
    saved_model = f"{tmp_path / 'out'} holds the model before step 1"
    assert err.endswith(f"{NO_GAIN}{saved_model}; try another --lr than 30\n")


def test_a_training_that_lowers_the_loss_has_no_note(train_small):
    code, out, err = train_small("--steps", "4", "--lr", "0.003")
    assert code == 0
    assert out.endswith("after step 4\n")
    assert NO_GAIN not in err
