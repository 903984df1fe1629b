"""The tied and the untied model of a checkpoint, whatever its config.json and its file say."""

import numpy as np
import pytest
from support.checkpoint_files import assert_same, write_tensors
from support.checks import refuses
from support.models import SMALL, random_model

from tiedgpt.checkpoints.conversion import tied_model, untied_model
from tiedgpt.checkpoints.formats import open_checkpoint
from tiedgpt.errors import ArgumentError

TIED = random_model(SMALL)
UNTIED = random_model(SMALL.with_head("untied"))
COPY = TIED.untie("copy")


@pytest.fixture
def open_(tmp_path):
    """open_(said, model): a checkpoint whose config.json says this head, with a model's tensors."""
    return lambda said, model: open_checkpoint(
        write_tensors(tmp_path, model.parameters, SMALL.with_head(said))
    )


def untie(checkpoint, **options):
    return untied_model(checkpoint, "mine", checkpoint.load, **options)


def tie(checkpoint, **options):
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
    assert len(notes) == 1
    assert "says tied, but the file holds a W_U that is not wte.T: the copy has this" in notes[0]


def test_untie_drops_another_head_of_the_file_if_it_must(open_):
    untied = untie(open_("tied", UNTIED), init="zeros", force=True)
    np.testing.assert_array_equal(untied.W_U, 0)


def test_untie_without_the_head_that_config_json_promises(open_):
    notes = []
    assert_same(untie(open_("untied", TIED), note=notes.append), COPY)
    assert len(notes) == 1
    assert "says untied, but the file holds no W_U: the copy begins with wte.T" in notes[0]


def test_tie_drops_a_copy(open_):
    assert_same(tie(open_("untied", COPY)), TIED)


@pytest.mark.parametrize("said", ["tied", "untied"])
def test_tie_drops_another_head_if_it_must(open_, said):
    assert_same(tie(open_(said, UNTIED), force=True), UNTIED.tie())


def test_tie_without_the_head_that_config_json_promises(open_):
    notes = []
    assert_same(tie(open_("untied", TIED), note=notes.append), TIED)
    assert "says untied, but the file holds no W_U" in notes[0]


# What needs force


def test_untie_does_not_start_anew_without_force(open_):
    message = "holds a W_U that is not wte.T, though its config.json says tied: leave out --init"
    refuses(message, lambda: untie(open_("tied", UNTIED), init="copy"), error=ArgumentError)


@pytest.mark.parametrize("said", ["tied", "untied"])
def test_tie_does_not_drop_another_head_without_force(open_, said):
    message = "the W_U of mine is not wte.T; to drop it all the same, add --force"
    refuses(message, lambda: tie(open_(said, UNTIED)), error=ArgumentError)


def test_the_error_says_what_dropping_the_head_does(open_):
    def effect(model):
        return f": its {model.config.n_head} heads suffer"

    message = "is not wte.T: its 3 heads suffer; to drop it"
    refuses(message, lambda: tie(open_("untied", UNTIED), effect=effect), error=ArgumentError)


# What is there already


@pytest.mark.parametrize("model", [COPY, UNTIED], ids=["a-copy", "another-head"])
def test_an_untied_model_is_not_untied_again(open_, model):
    refuses("is untied already$", lambda: untie(open_("untied", model)), error=ArgumentError)


@pytest.mark.parametrize("model", [TIED, COPY], ids=["no-head", "a-copy"])
def test_a_tied_model_is_not_tied_again(open_, model):
    refuses("is tied already$", lambda: tie(open_("tied", model)), error=ArgumentError)
