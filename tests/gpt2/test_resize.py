"""model.resize and the command `tiedgpt resize`: a model gets more tokens, or fewer.

Models have V tokens at first, so V is the id of the first new token.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from support.commands import assert_one_error_line, output
from support.models import SMALL, random_model

import tiedgpt
from tiedgpt.errors import ArgumentError, TiedGPTWarning
from tiedgpt.gpt2.ops import softmax

IDS = [5, 17, 3, 3, 88, 100, 42]
V = SMALL.vocab_size
HEADS = ["tied", "untied"]


@pytest.fixture(params=HEADS)
def model(request):
    return random_model(SMALL.with_head(request.param))


def test_old_tokens_keep_their_logits(model):
    resized = model.resize(V + 3)
    assert resized.config == replace(model.config, vocab_size=V + 3)
    np.testing.assert_allclose(resized(IDS)[:, :V], model(IDS), rtol=1e-5, atol=1e-5)


def test_a_tied_model_stays_tied():
    resized = random_model(SMALL).resize(V + 3)
    assert np.shares_memory(resized.W_U, resized.W_E)
    assert "lm_head.weight" not in resized.parameters


def test_the_logit_of_a_new_token_is_the_mean_of_the_old_ones(model):
    mean = model(IDS).mean(axis=-1)
    resized_logits = model.resize(V + 2)(IDS)
    for new_token in (V, V + 1):
        np.testing.assert_allclose(resized_logits[:, new_token], mean, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_mean_of_many_rows_keeps_its_digits(dtype):
    config = replace(SMALL, vocab_size=20_000, n_layer=0)
    model = random_model(config, dtype=dtype)
    model.W_E[:] = 0.1
    resized = model.resize(20_001)
    assert resized.dtype == dtype
    np.testing.assert_allclose(resized.W_E[-1], 0.1, rtol=1e-7)


def test_a_new_token_is_not_likelier_than_an_average_one():
    """All logits are below 0, as GPT-2's often are.

    If the new token's row were zeros, its logit would be 0, and it would be the likeliest token.
    """
    model = random_model(SMALL.with_head("untied"))
    final = model.final([5])[0]
    model.parameters["lm_head.weight"] -= 50 * final / (final @ final)  # each logit falls by 50
    assert model([5]).max() < 0
    probabilities = softmax(model.resize(V + 1)([5]).astype(np.float64))
    assert probabilities[0, V] < 1 / V


def test_random_rows_differ_and_come_from_the_seed(model):
    resized = model.resize(V + 2, init="random", seed=3)
    again = model.resize(V + 2, init="random", seed=3)
    other = model.resize(V + 2, init="random", seed=4)
    first, second = resized.W_E[V:]
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(resized.W_E, again.W_E)
    assert not np.array_equal(resized.W_E[V:], other.W_E[V:])
    if not model.config.tied:
        new_rows_of_W_U = resized.W_U.T[V:]
        assert not np.array_equal(new_rows_of_W_U, resized.W_E[V:])


@pytest.mark.parametrize("deviation", [0.02, 0.5])
def test_random_rows_have_the_deviation_of_the_model(deviation):
    model = random_model(replace(SMALL, initializer_range=deviation))
    new_rows = model.resize(2 * V, init="random").W_E[V:]
    assert np.std(new_rows - model.W_E.mean(axis=0)) == pytest.approx(deviation, rel=0.1)


def test_resize_does_not_change_the_model_itself(model):
    before = {name: array.copy() for name, array in model.parameters.items()}
    resized = model.resize(V + 1)
    resized.parameters["wte.weight"][:] = 0
    for name, array in before.items():
        np.testing.assert_array_equal(model.parameters[name], array)


def test_a_model_that_is_enlarged_and_shrunk_again_is_the_same(model):
    back = model.resize(V + 5, init="random").resize(V)
    assert back.config == model.config
    for name, array in model.parameters.items():
        np.testing.assert_array_equal(back.parameters[name], array)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param({"vocab_size": 1.5}, "vocab_size must be a whole number", id="a-fraction"),
        pytest.param({"vocab_size": V, "seed": -1}, "seed must be", id="seed"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        random_model(SMALL).resize(**arguments)


@pytest.mark.parametrize("eos", [V - 2, (0, V - 2)])
def test_the_token_that_ends_a_text_cannot_be_removed(eos):
    model = random_model(replace(SMALL, eos_token_id=eos))
    assert model.resize(V - 1).config.vocab_size == V - 1
    with pytest.raises(ArgumentError, match=f"at least {V - 1}: token {V - 2} ends a text"):
        model.resize(V - 2)


@pytest.mark.parametrize("size", [V + 1, V - 1])
def test_a_token_that_the_model_does_not_have_need_not_be_kept(size):
    """A config.json may name one, such as GPT-2's 50256 in a model of another vocabulary."""
    model = random_model(replace(SMALL, bos_token_id=V, eos_token_id=V))
    assert model.resize(size).config.vocab_size == size


def test_the_token_that_begins_a_text_cannot_be_removed():
    model = random_model(replace(SMALL, bos_token_id=V - 2, eos_token_id=0))
    with pytest.raises(ArgumentError, match=f"at least {V - 1}: token {V - 2} begins a text"):
        model.resize(V - 2)


@pytest.mark.parametrize("head", HEADS)
def test_transformers_computes_the_logits_of_a_resized_copy(head, run, tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs pip install -e .[parity]")
    torch = pytest.importorskip("torch")
    name = f"shakespeare-{head}"
    copy = str(tmp_path / "copy")
    code, _, _ = run("resize", "-q", name, copy, "--vocab-size", "1030")
    assert code == 0
    theirs = transformers.GPT2LMHeadModel.from_pretrained(copy)
    with torch.no_grad():
        logits = theirs(torch.tensor([IDS])).logits[0].numpy()
    assert logits.shape == (len(IDS), 1030)
    ours = tiedgpt.load_model(name).resize(1030)
    np.testing.assert_allclose(logits, ours(IDS), atol=1e-4)


# The command


def test_the_command_writes_the_model_and_copies_the_tokenizer(run, tmp_path):
    copy = tmp_path / "copy"
    code, out, err = run("resize", "shakespeare-tied", str(copy), "--vocab-size", "1026")
    assert (code, out) == (0, "")
    assert f"wrote {copy}: tied, 941,056 parameters" in err
    assert "ids from 1024 on have no text yet" in err
    expected = tiedgpt.load_model("shakespeare-tied").resize(1026)
    np.testing.assert_array_equal(tiedgpt.load_model(copy).W_E, expected.W_E)
    assert tiedgpt.load_tokenizer(copy).encode("To be") == [396, 304]


def test_the_command_makes_a_tokenizer_with_added_tokens_usable(run, tmp_path):
    """The folder has a tokenizer with a new token, for which the model has no row.

    transformers saves such a folder when a token is added to the tokenizer.
    """
    tokenizer = tiedgpt.load_tokenizer("shakespeare-tied")
    new_id = tokenizer.vocab_size
    assert new_id == 1024
    special_tokens = {**tokenizer.special_tokens, "<|user|>": new_id}
    tokenizer_with_new_token = tiedgpt.Tokenizer(tokenizer.merges, special_tokens)
    model = tiedgpt.load_model("shakespeare-tied")
    folder = tmp_path / "folder"
    with pytest.warns(TiedGPTWarning, match="the tokenizer has 1025 tokens"):
        tiedgpt.save_model(model, tokenizer_with_new_token, folder)
    copy = str(tmp_path / "copy")
    code, _, err = run("resize", str(folder), copy, "--vocab-size", "1025")
    assert code == 0
    assert "the tokenizer has" not in err
    prompt = "<|user|>To be"
    report = json.loads(output(run, "next", "-m", copy, "--allow-special", "--json", prompt))
    assert report["prompt_ids"][0] == new_id


def test_the_command_shrinks_an_enlarged_model_to_the_original(run, tmp_path):
    larger = str(tmp_path / "larger")
    back = str(tmp_path / "back")
    run("resize", "-q", "shakespeare-untied", larger, "--vocab-size", "1026")
    code, _, err = run("resize", larger, back, "--vocab-size", "1024", "--shrink")
    assert code == 0
    assert "the tokenizer has" not in err
    original = tiedgpt.load_model("shakespeare-untied")
    for name, array in tiedgpt.load_model(back).parameters.items():
        np.testing.assert_array_equal(array, original.parameters[name])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--vocab-size", "1024"], "has 1,024 tokens already", id="the-same-size"),
        pytest.param(["--vocab-size", "1000"], "last 24, add --shrink", id="fewer-tokens"),
        pytest.param(
            ["--vocab-size", "1000", "--shrink"], "token 1023 ends a text", id="the-end-of-a-text"
        ),
        pytest.param(["--vocab-size", "1026", "--shrink"], "fewer than 1,026", id="shrink-to-more"),
        pytest.param(
            ["--vocab-size", "1026", "--seed", "1"], "--seed is for --init random", id="seed"
        ),
    ],
)
def test_refused_command_lines(run, tmp_path, arguments, message):
    copy = tmp_path / "copy"
    result = run("resize", "shakespeare-tied", str(copy), *arguments)
    assert_one_error_line(result, message)
    assert not copy.exists()
