"""The parts of a logit, the model with some parts ablated, and the predictions of single tokens.

A part of a model adds a vector to the residual stream: an embedding, a head, an MLP or a bias. The
part of a logit is what this vector contributes to it. An ablated part adds nothing. A prediction
says how likely a token is after a text, and which other tokens, its alternatives, are likely there.
"""

import re
from dataclasses import replace

import numpy as np
import pytest
from support.models import SMALL, VARIANTS, random_model

from tiedgpt import GPT2
from tiedgpt.errors import ArgumentError, TiedGPTError
from tiedgpt.evaluation import predicted_places, token_losses
from tiedgpt.generation import Sampling, generate, sample_tokens
from tiedgpt.gpt2.run import activation_shapes
from tiedgpt.study.predictions import (
    ablation,
    attribute,
    last_logits,
    last_tape,
    lens,
    next_tokens,
    predict,
    surprisal,
    token_predictions,
)

UNTIED = SMALL.with_head("untied")
IDS = [5, 17, 3, 3, 88, 100, 42]  # a text of seven tokens
TOKEN = 7  # the token whose logit is divided into its parts


def added_vectors(model, ids) -> dict[str, np.ndarray]:
    """The vector that each part adds at the last token, in the order of the forward pass."""
    p = model.parameters
    config = model.config
    tape = {}
    model(ids, tape=tape)
    vectors = {"wte": p["wte.weight"][ids[-1]], "wpe": p["wpe.weight"][len(ids) - 1]}
    sequence = 0  # the arrays of the tape have an axis for a batch, here of one sequence
    for layer in range(config.n_layer):
        head_outputs = tape[f"attn.{layer}.heads"][sequence, :, -1]  # of the last token, [H, K]
        c_proj = p[f"h.{layer}.attn.c_proj.weight"]
        for head in range(config.n_head):
            # The output of this head, with zeros for those of the other heads.
            only_this_head = np.zeros_like(head_outputs)
            only_this_head[head] = head_outputs[head]
            vectors[f"attn.{layer}.head.{head}"] = only_this_head.ravel() @ c_proj
        vectors[f"attn.{layer}.bias"] = p[f"h.{layer}.attn.c_proj.bias"]
        hidden = tape[f"mlp.{layer}.post"][sequence, -1]
        vectors[f"mlp.{layer}"] = hidden @ p[f"h.{layer}.mlp.c_proj.weight"]
        vectors[f"mlp.{layer}.bias"] = p[f"h.{layer}.mlp.c_proj.bias"]
    return vectors


each_config = pytest.mark.parametrize(
    "config",
    [
        pytest.param(SMALL, id="tied"),
        pytest.param(UNTIED, id="untied"),
        pytest.param(replace(UNTIED, n_layer=0), id="no-layers"),
        *[
            pytest.param(
                config,
                id=f"another-{name}",
                marks=() if name == "layer_norm_epsilon" else pytest.mark.slow,
            )
            for name, config in VARIANTS.items()
        ],
    ],
)
each_text = pytest.mark.parametrize(
    "ids", [pytest.param(IDS, id="text"), pytest.param(IDS[:1], id="one-token")]
)
# attribute(model, ids, token, against) divides the logit of `token` into parts. If `against` is a
# token, it divides the difference: the logit of `token` less the logit of `against`.
logit_and_difference = pytest.mark.parametrize(
    "against",
    [
        pytest.param(None, id="logit"),
        pytest.param(9, id="difference-of-logits", marks=pytest.mark.slow),
        pytest.param(0, id="difference-from-token-0"),
    ],
)


@each_config
@logit_and_difference
@each_text
def test_each_part_is_the_product_of_its_normed_vector_and_the_tokens_column(config, against, ids):
    """With `against`, the parts are those of a difference of two logits, so of two columns."""
    model = random_model(config, dtype=np.float64)
    u = model.W_U[:, TOKEN]
    if against is not None:
        u = u - model.W_U[:, against]

    # ln_f subtracts its mean from each vector, and divides it by the standard deviation of the sum
    # of all vectors.
    vectors = added_vectors(model, ids)
    resid = sum(vectors.values())
    deviation = np.sqrt(resid.var() + config.layer_norm_epsilon)
    expected = {}
    for name, vector in vectors.items():
        normed = (vector - vector.mean()) / deviation * model.parameters["ln_f.weight"]
        expected[name] = normed @ u
    expected["ln_f.bias"] = model.parameters["ln_f.bias"] @ u

    parts = attribute(model, ids, TOKEN, against)
    assert list(parts) == list(expected), "the names of the parts, in order"
    assert list(parts.values()) == pytest.approx(list(expected.values()), rel=1e-10, abs=1e-12)


@each_config
@logit_and_difference
@each_text
def test_the_parts_add_up_to_the_logit(config, against, ids):
    """With `against`, the parts add up to the difference of the logits of two tokens."""
    model = random_model(config, dtype=np.float64)
    logits = model(ids)[-1]
    expected = logits[TOKEN]
    if against is not None:
        expected -= logits[against]
    parts = attribute(model, ids, TOKEN, against)
    assert sum(parts.values()) == pytest.approx(expected, rel=0, abs=1e-10)


@each_config
@logit_and_difference
@each_text
def test_the_parts_of_a_float32_model_are_near_those_of_the_float64_model(config, against, ids):
    """Without `dtype`, random_model makes a float32 model of the same parameters."""
    parts = attribute(random_model(config), ids, TOKEN, against)
    expected = attribute(random_model(config, dtype=np.float64), ids, TOKEN, against)
    assert parts == pytest.approx(expected, rel=0, abs=1e-4)


def test_the_parts_of_a_logit_after_a_whole_context():
    model = random_model(dtype=np.float64)
    ids = np.arange(SMALL.n_ctx)
    parts = attribute(model, ids, TOKEN)
    assert sum(parts.values()) == pytest.approx(model(ids)[-1, TOKEN], rel=0, abs=1e-10)


def test_the_tape_of_a_logit_may_have_more_tokens_than_the_last():
    model = random_model(dtype=np.float64)
    parts = attribute(model, IDS, TOKEN, tape=last_tape(model, IDS, n=5))
    assert parts == pytest.approx(attribute(model, IDS, TOKEN))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        pytest.param([], "the prompt is empty", id="empty"),
        pytest.param(9 * IDS, "63 tokens, more than the model's context of 31", id="long"),
    ],
)
def test_an_empty_and_a_too_long_prompt_are_refused(model, ids, message):
    for read in (
        lambda: attribute(model, ids, TOKEN),
        lambda: last_logits(model, ids),
        lambda: last_tape(model, ids, 2),
        lambda: lens(model, ids),
        lambda: next_tokens([model], ids, k=2),
    ):
        with pytest.raises(ArgumentError, match=message):
            read()


@pytest.mark.parametrize(
    ("token", "message"),
    [
        pytest.param(101, "token id 101 is outside the vocabulary of 101", id="too-large"),
        pytest.param(-1, "token id -1 is outside", id="negative"),
        pytest.param([1], r"must be one sequence of ids|ids must be \[T\]", id="list"),
    ],
)
def test_attribute_refuses_what_is_not_a_token_of_the_vocabulary(model, token, message):
    with pytest.raises(ArgumentError, match=message):
        attribute(model, IDS, token)
    with pytest.raises(ArgumentError, match=message):
        attribute(model, IDS, TOKEN, against=token)


def zero_a_head(p, layer: int, head: int) -> None:
    """Set the rows of c_proj that read the output of this head to 0."""
    K = SMALL.head_width
    p[f"h.{layer}.attn.c_proj.weight"][head * K : (head + 1) * K] = 0


def zero_a_module(p, name: str) -> None:
    p[f"{name}.weight"][:] = 0
    p[f"{name}.bias"][:] = 0


# A part -> a function that sets parameters p to 0, so that the part adds nothing
ZEROS = {
    "attn.1.head.2": lambda p: zero_a_head(p, layer=1, head=2),
    "attn.0": lambda p: zero_a_module(p, "h.0.attn.c_proj"),
    "mlp.1": lambda p: zero_a_module(p, "h.1.mlp.c_proj"),
    "attn.1.head.0": lambda p: zero_a_head(p, layer=1, head=0),
}


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["attn.1.head.2"], id="head"),
        pytest.param(["attn.0"], id="attention"),
        pytest.param(["mlp.1"], id="mlp"),
        pytest.param(["attn.1.head.0"], id="first-head"),
        pytest.param(["attn.1.head.2", "attn.1.head.0", "mlp.1"], id="two-heads-and-an-mlp"),
    ],
)
def test_ablating_parts_gives_the_logits_of_a_model_whose_weights_of_these_parts_are_0(names):
    model = random_model(dtype=np.float64)
    zeroed_model = random_model(dtype=np.float64)
    for name in names:
        set_to_zero = ZEROS[name]
        set_to_zero(zeroed_model.parameters)
    logits = model(IDS, edit=ablation(SMALL, names))
    np.testing.assert_allclose(logits, zeroed_model(IDS), rtol=1e-10)
    assert np.abs(logits - model(IDS)).max() > 1e-2, "the ablation changes the logits"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        pytest.param("attn.1.head.3", r".*attn\.1\.head\.2", id="head-3-where-the-last-is-2"),
        # The two MLPs, in any order, are the nearest names. More names follow.
        pytest.param("mlp.2", r"mlp\.[01], mlp\.[01], ", id="layer-2-where-the-last-is-1"),
        pytest.param("resid_mid.0", "", id="an-activation-that-is-not-a-part"),
        pytest.param("", "", id="empty"),
    ],
)
def test_ablation_refuses_a_name_that_is_not_a_part_and_lists_similar_names(name, nearest):
    message = f"^{name!r} is not a part that can be removed; the nearest are {nearest}"
    with pytest.raises(ArgumentError, match=message):
        ablation(SMALL, ["mlp.0", name])  # mlp.0 is a part


def test_ablation_refuses_a_part_of_a_model_without_layers():
    message = (
        "^'mlp.0' is not a part that can be removed; the nearest are none, for it has no layers$"
    )
    with pytest.raises(ArgumentError, match=message):
        ablation(replace(SMALL, n_layer=0), ["mlp.0"])


# Edits of the forward pass, by name: each activation replaced by its tanh, and some parts ablated
EDITED_ACTIVATIONS = list(activation_shapes(SMALL))
EDITS = {activation: {activation: np.tanh} for activation in EDITED_ACTIVATIONS}
for part in ZEROS:
    EDITS[part] = ablation(SMALL, [part])


def marks_of_edit(name):
    """The activations of layer 1 and the parts are quick."""
    return pytest.mark.slow if name in EDITED_ACTIVATIONS and ".0" in name else ()


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of_edit(name)) for name in EDITS])
@pytest.mark.parametrize(
    "cuts",
    [
        pytest.param([1, 2, 3, 4, 5, 6], id="token-by-token", marks=pytest.mark.slow),
        pytest.param([3, 4, 5], id="pieces"),
    ],
)
def test_edits_give_the_same_logits_in_one_pass_and_in_pieces_with_a_cache(name, cuts):
    """`cuts` has the places at which the seven tokens are cut into pieces."""
    model = random_model(dtype=np.float64)
    edit = EDITS[name]
    expected = model(IDS, edit=edit)
    assert np.abs(expected - model(IDS)).max() > 1e-3, "the edit changes the logits"
    cache = model.new_cache()
    logits = [model(piece, cache, edit=edit) for piece in np.split(IDS, cuts)]
    np.testing.assert_allclose(np.concatenate(logits), expected, rtol=1e-9, atol=1e-9)


LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -1.0])  # of five tokens, of which 1 and 3 are the likeliest


def test_predict_gives_the_logit_probability_and_rank_of_a_token():
    p = np.exp(LOGITS) / np.exp(LOGITS).sum()
    (prediction,) = predict(LOGITS, [2])
    assert prediction.token == 2
    assert prediction.logit == LOGITS[2]
    assert prediction.probability == pytest.approx(p[2])
    assert prediction.rank == 3  # two tokens are likelier
    assert prediction.alternatives == []  # they are given only if k says how many


def test_tokens_with_equal_logits_have_the_same_rank():
    """A rank is one more than the number of tokens with a larger logit."""
    predictions = predict(LOGITS, range(5))
    assert [prediction.rank for prediction in predictions] == [4, 1, 3, 1, 5]


def test_the_k_alternatives_are_the_likeliest_other_tokens():
    p = np.exp(LOGITS) / np.exp(LOGITS).sum()
    (prediction,) = predict(LOGITS, [2], k=3)
    assert [token for token, _ in prediction.alternatives] == [1, 3, 0]
    expected = [np.log(p[1]), np.log(p[3]), np.log(p[0])]
    assert [log_p for _, log_p in prediction.alternatives] == pytest.approx(expected)
    (prediction,) = predict(LOGITS, [2], k=1)
    assert [token for token, _ in prediction.alternatives] == [1]


def test_with_a_large_k_the_alternatives_are_all_tokens_but_the_predicted_one():
    prediction_of_3, prediction_of_1 = predict(LOGITS, [3, 1], k=9)
    assert [token for token, _ in prediction_of_3.alternatives] == [1, 2, 0, 4]
    assert [token for token, _ in prediction_of_1.alternatives] == [3, 2, 0, 4]


def test_the_surprisal_of_a_log_probability_is_in_bits():
    assert surprisal(np.log(1 / 8)) == pytest.approx(3)  # 8 is 2**3


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_predict_refuses_logits_that_are_not_finite(number):
    with pytest.raises(TiedGPTError, match="not finite numbers"):
        predict(np.array([1.0, number]), [0])


def test_next_tokens_predicts_the_likeliest_tokens_of_two_models_with_both():
    untied = random_model(UNTIED, dtype=np.float64)
    tied = untied.tie()
    tied_likeliest = np.argsort(-tied(IDS)[-1])[:3].tolist()
    untied_likeliest = np.argsort(-untied(IDS)[-1])[:3].tolist()
    # The likeliest token of each model, then the second likeliest of each, then the third. A token
    # that both models have is in the list once.
    tokens = []
    for pair in zip(tied_likeliest, untied_likeliest, strict=True):
        for token in pair:
            if token not in tokens:
                tokens.append(token)
    by_tied = predict(last_logits(tied, IDS), tokens)
    by_untied = predict(last_logits(untied, IDS), tokens)
    assert next_tokens([tied, untied], IDS, k=3) == [by_tied, by_untied]


@pytest.mark.parametrize("config", [SMALL, UNTIED], ids=["tied", "untied"])
def test_last_logits_are_those_of_the_last_token(config):
    model = random_model(config, dtype=np.float64)
    np.testing.assert_allclose(last_logits(model, IDS), model(IDS)[-1], rtol=1e-9)


def test_the_last_tape_has_what_the_reports_read_and_no_more():
    """Of all activations, those of the MLPs and of the attention scores take most memory."""
    model = random_model(SMALL)
    tape = last_tape(model, [1, 2, 3, 4], 2)
    kinds = {re.sub(r"\.\d+", ".N", name) for name in tape}
    assert kinds >= {"embed", "resid_pre.N", "attn.N.pattern", "attn.N.heads", "mlp.N.out", "final"}
    assert not kinds & {
        *("attn.N.in", "attn.N.qkv", "attn.N.q", "attn.N.k", "attn.N.v", "attn.N.scores"),
        *("attn.N.out", "resid_mid.N", "mlp.N.in", "mlp.N.pre", "mlp.N.post"),
    }


@pytest.mark.parametrize("n", [1, 6, 7, 8])
def test_the_last_tape_is_the_end_of_a_whole_tape(monkeypatch, n):
    """The tokens before are read into a cache that is as long as the text. `progress` counts them.

    A cache of the whole context of a large model takes much memory.
    """
    model = random_model(dtype=np.float64)
    whole_tape = {}
    model(IDS, tape=whole_tape)
    read = []
    capacities = set()
    new_cache = GPT2.new_cache

    def recorded(model, batch=1, capacity=None):
        capacities.add(capacity)
        return new_cache(model, batch, capacity)

    monkeypatch.setattr(GPT2, "new_cache", recorded)
    tape = last_tape(model, IDS, n, read.append)
    np.testing.assert_allclose(tape["final"], whole_tape["final"][:, -n:], rtol=1e-9)
    assert sum(read) == max(0, len(IDS) - n)
    assert capacities == ({len(IDS)} if n < len(IDS) else set())


def test_the_first_of_the_next_tokens_is_the_one_that_greedy_generation_chooses(model):
    ((prediction,),) = next_tokens([model], IDS, k=1)
    assert prediction.token == next(generate(model, IDS, greedy=True))


@pytest.mark.parametrize("stride", [1, 15, 31])
def test_token_predictions_and_token_losses_are_of_the_same_tokens_and_equal(stride):
    """The text is longer than the context, so it is read in windows, `stride` tokens apart."""
    model = random_model(dtype=np.float64)
    ids = np.random.default_rng(3).integers(0, SMALL.vocab_size, 100)
    predictions = token_predictions(model, ids, stride, k=4)
    places = predicted_places(ids.size, SMALL.n_ctx, stride)
    assert [prediction.token for prediction in predictions] == ids[places].tolist()
    losses = [-prediction.log_probability for prediction in predictions]
    np.testing.assert_allclose(losses, token_losses(model, ids, stride), rtol=1e-12)


def test_the_alternatives_of_token_predictions_are_the_likeliest_other_tokens():
    model = random_model(dtype=np.float64)
    *before, last_token = IDS
    prediction_of_last_token = token_predictions(model, IDS, stride=1, k=4)[-1]
    other_tokens = np.argsort(-model(before)[-1]).tolist()  # all tokens, the likeliest first
    other_tokens.remove(last_token)
    alternatives = [token for token, _ in prediction_of_last_token.alternatives]
    assert alternatives == other_tokens[:4]


each_sampling = pytest.mark.parametrize(
    "sampling",
    [
        pytest.param(Sampling(), id="sampling"),
        pytest.param(Sampling(greedy=True), id="greedy"),
        pytest.param(Sampling(temperature=0.5, top_k=3), id="temperature-and-top-k"),
    ],
)


@pytest.fixture
def sampled_and_recorded(model):
    """sampled_and_recorded(sampling) -> (two rows of 40 new tokens, the predictions of each row).

    Both rows continue the same prompt IDS, with different random numbers. With the 7 tokens of the
    prompt, a row has 47 tokens, more than the context of 31.
    """

    def sampled_and_recorded(sampling):
        predictions = [[], []]

        def record(row, logits, token):
            """sample_tokens calls this for each token that it chooses."""
            predictions[row] += predict(logits, [token], k=2)

        steps = sample_tokens(
            model,
            IDS,
            max_new_tokens=40,
            sampling=sampling,
            seed=1,
            num_samples=2,
            record=record,
        )
        rows = np.transpose(list(steps)).tolist()
        return rows, predictions

    return sampled_and_recorded


@each_sampling
def test_record_is_called_with_each_chosen_token_and_its_row(sampled_and_recorded, sampling):
    rows, predictions = sampled_and_recorded(sampling)
    for row, predictions_of_row in zip(rows, predictions, strict=True):
        assert len(row) == 40
        assert [prediction.token for prediction in predictions_of_row] == row


@each_sampling
def test_the_recorded_logits_are_the_models_own(model, sampled_and_recorded, sampling):
    """The logits are recorded before the temperature and top-k change them."""
    (first_row, _), (first_predictions, _) = sampled_and_recorded(sampling)
    ids = list(IDS)
    # With the first 20 new tokens, the text still fits the context.
    for token, prediction in zip(first_row[:20], first_predictions[:20], strict=True):
        (expected,) = predict(last_logits(model, ids), [token], k=2)
        assert prediction.log_probability == pytest.approx(
            expected.log_probability, rel=1e-4, abs=1e-6
        )
        assert prediction.rank == expected.rank
        ids.append(token)
