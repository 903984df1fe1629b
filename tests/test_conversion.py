"""The tied and the untied model of a checkpoint, whatever its config.json and its file say.

config.json says tied or untied. The file of weights may hold no W_U (as that of TIED), a copy of
wte.T as W_U (as that of COPY), or another head: a W_U that is not wte.T (as that of UNTIED).
"""

import json
import subprocess

import numpy as np
import pytest
from support.checkpoint_files import assert_same, write_tensors
from support.checks import refuses
from support.commands import answer, assert_one_error_line, command
from support.models import CONFIG, SMALL, random_model
from tiedgpt.checkpoints.conversion import tied_model, untied_model

from tiedgpt import Tokenizer, load_model, save_model
from tiedgpt.checkpoints.formats import open_checkpoint
from tiedgpt.errors import ArgumentError

TIED = random_model(SMALL)  # without a W_U in its file
UNTIED = random_model(SMALL.with_head("untied"))  # its W_U is not wte.T
COPY = TIED.untie("copy")  # its W_U is wte.T


@pytest.fixture
def checkpoint_that_says(tmp_path):
    """checkpoint_that_says(head, model) -> a checkpoint with the tensors of the model.

    Its config.json says that the head is `head`, which may contradict the tensors.
    """

    def checkpoint_that_says(head, model):
        config = SMALL.with_head(head)
        return open_checkpoint(write_tensors(tmp_path, model.parameters, config))

    return checkpoint_that_says


def untie(checkpoint, **options):
    """The untied model of a checkpoint. Messages call the checkpoint "mine"."""
    return untied_model(checkpoint, "mine", checkpoint.load, **options)


def tie(checkpoint, **options):
    """The tied model of a checkpoint. Messages call the checkpoint "mine"."""
    return tied_model(checkpoint, "mine", checkpoint.load, **options)


# What the copy holds


@pytest.mark.parametrize("model", [TIED, COPY], ids=["no-head", "a-copy"])
def test_untie_starts_with_a_copy_of_wte(checkpoint_that_says, model):
    assert_same(untie(checkpoint_that_says("tied", model)), COPY)


@pytest.mark.parametrize("model", [TIED, COPY], ids=["no-head", "a-copy"])
def test_untie_starts_with_the_matrix_that_init_names(checkpoint_that_says, model):
    untied = untie(checkpoint_that_says("tied", model), init="random", seed=3)
    assert_same(untied, TIED.untie("random", seed=3))


def test_untie_keeps_another_head_of_the_file(checkpoint_that_says):
    notes = []
    assert_same(untie(checkpoint_that_says("tied", UNTIED), note=notes.append), UNTIED)
    (note,) = notes
    assert "says tied, but the file holds a W_U that is not wte.T: the copy has this" in note


def test_untie_with_force_drops_another_head_of_the_file(checkpoint_that_says):
    untied = untie(checkpoint_that_says("tied", UNTIED), init="zeros", force=True)
    np.testing.assert_array_equal(untied.W_U, 0)


def test_untie_copies_wte_if_the_file_lacks_the_head_that_config_json_promises(
    checkpoint_that_says,
):
    notes = []
    assert_same(untie(checkpoint_that_says("untied", TIED), note=notes.append), COPY)
    (note,) = notes
    assert "says untied, but the file holds no W_U: the copy begins with wte.T" in note


def test_tie_drops_a_copy(checkpoint_that_says):
    assert_same(tie(checkpoint_that_says("untied", COPY)), TIED)


@pytest.mark.parametrize("said", ["tied", "untied"])
def test_tie_with_force_drops_another_head(checkpoint_that_says, said):
    assert_same(tie(checkpoint_that_says(said, UNTIED), force=True), UNTIED.tie())


def test_tie_notes_that_the_file_lacks_the_head_that_config_json_promises(checkpoint_that_says):
    notes = []
    assert_same(tie(checkpoint_that_says("untied", TIED), note=notes.append), TIED)
    (note,) = notes
    assert "says untied, but the file holds no W_U" in note


# What needs force


def test_untie_does_not_start_anew_without_force(checkpoint_that_says):
    message = "holds a W_U that is not wte.T, though its config.json says tied: leave out --init"
    checkpoint = checkpoint_that_says("tied", UNTIED)
    refuses(message, lambda: untie(checkpoint, init="copy"), error=ArgumentError)


@pytest.mark.parametrize("said", ["tied", "untied"])
def test_tie_does_not_drop_another_head_without_force(checkpoint_that_says, said):
    message = "the W_U of mine is not wte.T; to drop it all the same, add --force"
    checkpoint = checkpoint_that_says(said, UNTIED)
    refuses(message, lambda: tie(checkpoint), error=ArgumentError)


def test_the_error_says_what_dropping_the_head_does(checkpoint_that_says):
    """`effect` is called with the untied model, and returns a part of the message."""

    def effect(model):
        return f": its {model.config.n_embd} numbers for each token are lost"

    numbers = SMALL.n_embd
    message = f"is not wte.T: its {numbers} numbers for each token are lost; to drop it"
    checkpoint = checkpoint_that_says("untied", UNTIED)
    refuses(message, lambda: tie(checkpoint, effect=effect), error=ArgumentError)


# Models that are untied or tied already


@pytest.mark.parametrize("model", [COPY, UNTIED], ids=["a-copy", "another-head"])
def test_an_untied_model_is_not_untied_again(checkpoint_that_says, model):
    checkpoint = checkpoint_that_says("untied", model)
    refuses("is untied already$", lambda: untie(checkpoint), error=ArgumentError)


@pytest.mark.parametrize("model", [TIED, COPY], ids=["no-head", "a-copy"])
def test_a_tied_model_is_not_tied_again(checkpoint_that_says, model):
    checkpoint = checkpoint_that_says("tied", model)
    refuses("is tied already$", lambda: tie(checkpoint), error=ArgumentError)


# The commands


def test_untie_writes_the_head_of_the_file_and_says_so(run, tmp_path):
    write_tensors(tmp_path / "source", UNTIED.parameters, SMALL)
    code, out, err = run("untie", str(tmp_path / "source"), str(tmp_path / "copy"))
    assert (code, out) == (0, "")
    assert "the file holds a W_U that is not wte.T: the copy has this W_U" in err
    assert_same(load_model(tmp_path / "copy"), UNTIED)


def test_untie_with_init_needs_force(run, tmp_path):
    write_tensors(tmp_path / "source", UNTIED.parameters, SMALL)
    arguments = ["untie", str(tmp_path / "source"), str(tmp_path / "copy"), "--init", "zeros"]
    assert_one_error_line(run(*arguments), "or add --force to drop it")
    assert not (tmp_path / "copy").exists()
    assert run(*arguments, "--force", "-q") == (0, "", "")
    np.testing.assert_array_equal(load_model(tmp_path / "copy").W_U, 0)


def test_tie_needs_force(run, tmp_path):
    write_tensors(tmp_path / "source", UNTIED.parameters, SMALL)
    arguments = ["tie", str(tmp_path / "source"), str(tmp_path / "copy")]
    assert_one_error_line(run(*arguments), "is not wte.T: the loss of ")
    assert run(*arguments, "--force", "-q") == (0, "", "")
    assert_same(load_model(tmp_path / "copy"), UNTIED.tie())


@pytest.mark.parametrize(("command_name", "copy"), [("tie", TIED), ("untie", COPY)])
def test_a_command_mends_a_checkpoint_without_its_head(run, tmp_path, command_name, copy):
    """config.json says untied, and there is no W_U in the file."""
    write_tensors(tmp_path / "source", TIED.parameters, UNTIED.config)
    code, out, err = run(command_name, str(tmp_path / "source"), str(tmp_path / "copy"))
    assert (code, out) == (0, "")
    assert "says untied, but the file holds no W_U" in err
    assert_same(load_model(tmp_path / "copy"), copy)


def test_params_shows_the_head_that_is_loaded(run, tmp_path):
    write_tensors(tmp_path, UNTIED.parameters, SMALL)
    document = answer(run, "params", "-m", str(tmp_path))
    assert document["config"]["tied"] is False


def test_a_command_says_that_the_head_of_the_file_is_used(tmp_path):
    """config.json says tied, and the file holds a W_U that is not wte.T."""
    save_model(random_model(CONFIG), Tokenizer([]), tmp_path)
    untied = random_model(CONFIG.with_head("untied"), seed=1)
    write_tensors(tmp_path, untied.parameters, CONFIG)  # beside the tokenizer
    arguments = command("score", "-m", str(tmp_path), "--json")
    done = subprocess.run(arguments, input=b"abcdef", capture_output=True, check=True)
    assert json.loads(done.stdout)["head"] == "untied"
    assert b"note: " in done.stderr
    assert b"untied, as transformers 5 reads it; transformers 4 reads it as tied" in done.stderr


# A damaged model


@pytest.mark.parametrize("words", [["untie"], ["resize", "--vocab-size", "300"]], ids=" ".join)
def test_a_copy_of_a_model_with_nan_is_not_written(run, save, tmp_path, words):
    """np.errstate is there because NumPy's own warnings about NaN would be errors in a test."""
    model = random_model(CONFIG)
    model.parameters["wte.weight"][-1, 0] = np.nan
    damaged = save("damaged", model)
    with np.errstate(invalid="ignore"):
        result = run(*words, damaged, str(tmp_path / "copy"))
    assert_one_error_line(result, "checkpoint is damaged")
    assert not (tmp_path / "copy").exists()


def test_a_w_u_with_infinity_is_not_resized(run, save, tmp_path):
    model = random_model(CONFIG.with_head("untied"))
    model.parameters["lm_head.weight"][-1, 0] = np.inf
    damaged = save("damaged", model)
    with np.errstate(invalid="ignore"):
        result = run("resize", damaged, str(tmp_path / "copy"), "--vocab-size", "300")
    assert_one_error_line(result, "checkpoint is damaged")


def test_next_with_both_heads_of_a_model_with_nan(run, save):
    model = random_model(CONFIG.with_head("untied"))
    model.parameters["lm_head.weight"][-1, 0] = np.nan
    result = run("next", "--head", "both", "-m", save("damaged", model), "a")
    assert_one_error_line(result, "checkpoint is damaged")
