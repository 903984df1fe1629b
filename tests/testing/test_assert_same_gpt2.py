"""assert_same_gpt2 and assert_vectors: what they look at by default, and what their errors say."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tiedgpt import GPT2
from tiedgpt.comparison.compare import compare
from tiedgpt.comparison.vector_mistakes import ENCODERS, Vocabulary
from tiedgpt.comparison.vectors import DIRECTORY, Vectors
from tiedgpt.gpt2.backward import loss_and_gradients
from tiedgpt.testing import (
    TINY,
    assert_same_gpt2,
    assert_vectors,
    random_model,
    scale_of,
    tiny_gpt2,  # noqa: F401 - a fixture
)


def test_by_default_two_texts_of_the_random_model_are_compared():
    texts = []

    def theirs(ids):
        texts.append(np.array(ids))
        return random_model()(ids)

    assert_same_gpt2(theirs)
    assert texts[0].shape == (2, TINY.n_ctx)
    assert len(np.unique(texts[0])) > TINY.n_ctx, "the tokens are all over the vocabulary"
    assert texts[0].max() > TINY.vocab_size - 10
    assert_same_gpt2(theirs)
    assert all(np.array_equal(text, texts[0]) for text in texts), "they are the same each time"
    assert not np.array_equal(*texts[0])


def test_by_default_texts_have_at_most_64_tokens():
    model = random_model(replace(TINY, n_ctx=70, n_layer=1))
    shapes = []

    def theirs(ids):
        shapes.append(np.shape(ids))
        return model(ids)

    assert_same_gpt2(theirs, model)
    assert shapes[0] == (2, 64)


def test_another_epsilon_is_another_gpt2():
    model = random_model()
    other = replace(model.config, layer_norm_epsilon=1e-6)
    with pytest.raises(AssertionError, match=r"^not the same GPT-2\n\n") as caught:
        assert_same_gpt2(GPT2(other, model.parameters), model)
    assert [entry.path.name for entry in caught.traceback.filter(caught)] == [Path(__file__).name]


def test_without_a_model_the_message_says_which_one_was_taken():
    """A port that has loaded other weights is right, and not the same."""
    tape = {}
    random_model(seed=1)([1, 2, 3], tape=tape)
    theirs = {"embed": tape["embed"]}
    with pytest.raises(AssertionError) as caught:
        assert_same_gpt2(theirs, ids=[1, 2, 3])
    sentence = "not the same GPT-2 as tiedgpt.testing.random_model(), since no model was given"
    report = compare(random_model(), theirs, [1, 2, 3])
    assert str(caught.value) == f"{sentence}\n\n{report}"


def test_activations_without_logits_are_not_enough():
    model = random_model()
    ids = [1, 2, 3]
    tape = {}
    model(ids, tape=tape)
    theirs = {"embed": tape["embed"]}
    with pytest.raises(AssertionError) as caught:
        assert_same_gpt2(theirs, model, ids)
    report = compare(model, theirs, ids)
    sentence = "not enough was compared to say that it is the same GPT-2"
    assert str(caught.value) == f"{sentence}\n\n{report}"
    of_model = r"the same GPT-2 as tiedgpt\.testing\.random_model\(\), since no model was given\n"
    with pytest.raises(AssertionError, match=of_model):
        assert_same_gpt2({"embed": tape["embed"]}, ids=ids)


def test_every_parameter_of_the_random_model_matters():
    model = random_model()
    for name, array in model.parameters.items():
        mean, deviation = scale_of(name, TINY)
        assert deviation > 0, name
        assert abs(np.mean(array) - mean) < 0.5 * deviation, name
        assert 0.7 < np.std(array) / deviation < 1.3, name
        if "ln_" in name and name.endswith("bias"):
            gain = model.parameters[name.replace("bias", "weight")]
            assert 0.15 < np.std(array) / np.mean(gain) < 0.6, name
    assert 8 < np.std(model([list(range(37))])) < 25


def test_each_part_of_the_random_model_adds_little_to_the_residual_stream():
    """So little that the epsilon of a layer norm matters, and none so much that it hides another.

    The activations of each MLP are about 1: the gelu is neither linear nor a ReLU there.
    """
    tape = {}
    random_model()([list(range(37))], tape=tape)
    for name, array in tape.items():
        if name.endswith(".out") or name == "embed":
            assert 0.003 < np.std(array) < 0.1, name
        if name.endswith((".pre", ".q", ".k", ".v")):
            assert 0.5 < np.std(array) < 4, name


def test_no_two_axes_of_the_random_model_have_one_length():
    D = TINY.n_embd
    lengths = [TINY.vocab_size, TINY.n_ctx, D, 3 * D, 4 * D, TINY.n_inner, TINY.head_width]
    assert len({*lengths, TINY.n_layer, TINY.n_head}) == len(lengths) + 1  # 3 layers, 3 heads
    assert TINY.vocab_size % 64, "it is not padded"
    assert (TINY.n_layer, TINY.n_head) == (3, 3)


@pytest.mark.parametrize("field", ["bos_token_id", "eos_token_id"])
def test_the_special_tokens_of_the_random_model_are_in_its_vocabulary(field):
    assert 0 <= getattr(TINY, field) < TINY.vocab_size


@pytest.mark.parametrize("theirs", [{"hook_embed": np.ones((3, 48))}, {"probs": np.ones(3)}])
def test_it_fails_if_nothing_was_compared(theirs):
    match = r"^there is nothing to compare: .* rounding$"
    with pytest.raises(AssertionError, match=match) as caught:
        assert_same_gpt2(theirs, ids=[1, 2, 3])
    assert caught.value.__suppress_context__, "pytest shows one error, not two"
    assert caught.value.__cause__ is None


def test_with_targets_logits_without_gradients_are_not_enough():
    model, ids, targets = random_model(), [[1, 2, 3]], [[2, 3, 4]]
    theirs = {"logits": model(ids)}
    assert_same_gpt2(theirs, model, ids)
    with pytest.raises(AssertionError, match=r"^not enough was compared .*\n\ngradients: not com"):
        assert_same_gpt2(theirs, model, ids, targets)
    _, gradients = loss_and_gradients(model, ids, targets)
    assert_same_gpt2({**theirs, **gradients}, model, ids, targets)


def test_a_parameter_of_no_known_name_has_no_scale():
    with pytest.raises(AssertionError, match=r"^x has no scale$"):
        scale_of("x", TINY)


def test_without_n_inner_the_mlp_has_four_times_the_width():
    wide, usual = (replace(TINY, n_inner=size) for size in (4 * TINY.n_embd, None))
    name = "transformer.h.0.mlp.c_proj.weight"
    assert scale_of(name, usual) == scale_of(name, wide) != scale_of(name, TINY)
    assert {array.dtype for array in random_model().parameters.values()} == {np.dtype("float32")}


def test_right_answers_to_reference_values_pass():
    expected = json.loads((DIRECTORY / "expected.json").read_text(encoding="utf-8"))
    name = "encode/split/1"
    assert_vectors({name: expected[name]})
    with pytest.raises(AssertionError, match="wrong: 1"):
        assert_vectors({name: expected[name][:-1]})


def test_the_numbers_of_the_random_model_repeat_with_its_seed():
    for name, array in random_model(seed=1).parameters.items():
        np.testing.assert_array_equal(array, random_model(seed=1).parameters[name])
        assert not np.array_equal(array, random_model().parameters[name]), name


def test_no_gain_of_the_random_model_is_near_1_on_average():
    for name, array in random_model().parameters.items():
        if ".ln_" in name and name.endswith("weight"):
            assert 1.1 < array.mean() < 1.5, name


def test_the_assertion_of_reference_values_names_the_mistake():
    vectors = Vectors(DIRECTORY)
    answers = {}
    for case in vectors.cases:
        if case["kind"] == "encode":
            vocabulary = Vocabulary(vectors.tokenizers[case["given"]["vocabulary"]])
            answers[case["name"]] = ENCODERS["makes no merge"](vocabulary, case["given"]["text"])
    with pytest.raises(AssertionError, match=r"\nencode: .*yours makes no merge"):
        assert_vectors(answers)


def test_the_assertion_of_reference_values_names_each_wrong_case():
    with pytest.raises(AssertionError) as caught:
        assert_vectors({"encode/split/1": [1], "encode/split/2": [2]})
    lines = str(caught.value).splitlines()
    assert "wrong: 2" in lines[0]
    assert lines[1] == ""
    assert lines[2:] == [
        "encode/split/1: '11 111' is [1], expected [265, 220, 265, 16]",
        "encode/split/2: \"it's a's\" is [2], expected [72, 83, 280, 278, 280]",
    ]
    assert [entry.path.name for entry in caught.traceback.filter(caught)] == [Path(__file__).name]


def test_all_mistakes_that_explain_the_answers_are_named():
    vectors = Vectors(DIRECTORY)
    [case] = [case for case in vectors.cases if case["name"] == "encode/shakespeare/4"]
    vocabulary = Vocabulary(vectors.tokenizers[case["given"]["vocabulary"]])
    longest = "takes the longest token that fits, without the merges"
    answer = ENCODERS[longest](vocabulary, case["given"]["text"])
    with pytest.raises(AssertionError) as caught:
        assert_vectors({case["name"]: answer})
    assert str(caught.value).splitlines()[-2:] == [
        f"encode: yours {longest}",
        "encode: or yours makes the leftmost merge, not the one that was learned first",
    ]


def test_the_fixture_is_once_tied_and_once_untied(tiny_gpt2, request):  # noqa: F811
    head = "tied" if tiny_gpt2.tied else "untied"
    assert request.node.name.endswith(f"[{head}]")
    expected = random_model(TINY.with_head(head))
    for name, array in expected.parameters.items():
        np.testing.assert_array_equal(tiny_gpt2.parameters[name], array)
