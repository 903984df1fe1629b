"""The tied and the untied model of a checkpoint, whatever its config.json and its file say."""

import json
import subprocess

import numpy as np
import pytest
from support.checkpoint_files import assert_same, write_tensors
from support.checks import refuses
from support.commands import answer, assert_one_error_line, command
from support.models import CONFIG, SMALL, random_model

from tiedgpt import Tokenizer, load_model, save_model
from tiedgpt.checkpoints.conversion import tied_model, untied_model
from tiedgpt.checkpoints.formats import open_checkpoint
from tiedgpt.errors import ArgumentError

TIED = random_model(SMALL)  # without a W_U in its file
UNTIED = random_model(SMALL.with_head("untied"))  # its W_U is not wte.T
COPY = TIED.untie("copy")  # its W_U is wte.T


@pytest.fixture
def open_(tmp_path):
    """open_(said, model) -> a checkpoint with a model's tensors, whose config.json says this head.

    The two may contradict each other.
    """

    def open_(said, model):
        config = SMALL.with_head(said)
        return open_checkpoint(write_tensors(tmp_path, model.parameters, config))

    return open_


def untie(checkpoint, **options):
    """The untied model of a checkpoint. Messages call the checkpoint "mine"."""
    return untied_model(checkpoint, "mine", checkpoint.load, **options)


def tie(checkpoint, **options):
    """The tied model of a checkpoint. Messages call the checkpoint "mine"."""
    return tied_model(checkpoint, "mine", checkpoint.load, **options)


# What the copy holds


@pytest.mark.parametrize("model", [TIED, COPY], ids=["no-head", "a-copy"])
def test_untie_starts_with_a_copy_of_wte(open_, model):
    assert_same(untie(open_("tied", model)), COPY)


@pytest.mark.parametrize("model", [TIED, COPY], ids=["no-head", "a-copy"])
def test_untie_starts_as_it_is_told(open_, model):
    untied = untie(open_("tied", model), init="random", seed=3)
    assert_same(untied, TIED.untie("random", seed=3))


def test_untie_keeps_another_head_of_the_file(open_):
    notes = []
    assert_same(untie(open_("tied", UNTIED), note=notes.append), UNTIED)
    (note,) = notes
    assert "says tied, but the file holds a W_U that is not wte.T: the copy has this" in note


def test_untie_drops_another_head_of_the_file_if_it_must(open_):
    untied = untie(open_("tied", UNTIED), init="zeros", force=True)
    np.testing.assert_array_equal(untied.W_U, 0)


def test_untie_without_the_head_that_config_json_promises(open_):
    notes = []
    assert_same(untie(open_("untied", TIED), note=notes.append), COPY)
    (note,) = notes
    assert "says untied, but the file holds no W_U: the copy begins with wte.T" in note


def test_tie_drops_a_copy(open_):
    assert_same(tie(open_("untied", COPY)), TIED)


@pytest.mark.parametrize("said", ["tied", "untied"])
def test_tie_drops_another_head_if_it_must(open_, said):
    assert_same(tie(open_(said, UNTIED), force=True), UNTIED.tie())


def test_tie_without_the_head_that_config_json_promises(open_):
    notes = []
    assert_same(tie(open_("untied", TIED), note=notes.append), TIED)
    (note,) = notes
    assert "says untied, but the file holds no W_U" in note


# What needs force


def test_untie_does_not_start_anew_without_force(open_):
    message = "holds a W_U that is not wte.T, though its config.json says tied: leave out --init"
    refuses(message, lambda: untie(open_("tied", UNTIED), init="copy"), error=ArgumentError)


@pytest.mark.parametrize("said", ["tied", "untied"])
def test_tie_does_not_drop_another_head_without_force(open_, said):
    message = "the W_U of mine is not wte.T; to drop it all the same, add --force"
    refuses(message, lambda: tie(open_(said, UNTIED)), error=ArgumentError)


def test_the_error_says_what_dropping_the_head_does(open_):
    """The text is that of the argument `effect`, which is called with the model."""

    def effect(model):
        return f": its {model.config.n_embd} numbers for each token are lost"

    numbers = SMALL.n_embd
    message = f"is not wte.T: its {numbers} numbers for each token are lost; to drop it"
    refuses(message, lambda: tie(open_("untied", UNTIED), effect=effect), error=ArgumentError)


# What is there already


@pytest.mark.parametrize("model", [COPY, UNTIED], ids=["a-copy", "another-head"])
def test_an_untied_model_is_not_untied_again(open_, model):
    refuses("is untied already$", lambda: untie(open_("untied", model)), error=ArgumentError)


@pytest.mark.parametrize("model", [TIED, COPY], ids=["no-head", "a-copy"])
def test_a_tied_model_is_not_tied_again(open_, model):
    refuses("is tied already$", lambda: tie(open_("tied", model)), error=ArgumentError)


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
    write_tensors(tmp_path, untied.parameters, CONFIG)  # the tokenizer's files stay
    arguments = command("score", "-m", str(tmp_path), "--json")
    done = subprocess.run(arguments, input=b"abcdef", capture_output=True, check=True)
    assert json.loads(done.stdout)["head"] == "untied"
    assert b"note: " in done.stderr
    assert b"untied, as transformers 5 reads it; transformers 4 reads it as tied" in done.stderr


# A damaged model


@pytest.mark.parametrize("words", [["untie"], ["resize", "--vocab-size", "300"]], ids=" ".join)
def test_a_copy_of_a_model_with_nan_is_not_written(run, save, tmp_path, words):
    """NumPy's own warnings about NaN would be errors here."""
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
