"""Where a logit comes from, the model without some parts, and how single tokens are predicted.

A part adds a vector to the residual stream: an embedding, a head, an MLP or a bias. An ablated
model is one without some of them.
"""

from dataclasses import replace

import numpy as np
import pytest
from support.models import SMALL, random_model

from tiedgpt.errors import ArgumentError, TiedGPTError
from tiedgpt.gpt2.run import activation_shapes
from tiedgpt.inference.evaluation import predicted_places, token_losses
from tiedgpt.inference.generation import generate, random_streams, sample_steps
from tiedgpt.inference.sampling import Sampling
from tiedgpt.study.attribution import ablation, attribute
from tiedgpt.study.predictions import (
    last_logits,
    next_tokens,
    predict,
    surprisal,
    token_predictions,
)

UNTIED = SMALL.with_head("untied")
IDS = [5, 17, 3, 3, 88, 100, 42]


def added_vectors(model, ids) -> dict[str, np.ndarray]:
    """What each part adds to the residual stream of the last token, in the order of the model."""
    p = model.parameters
    config = model.config
    tape = {}
    model(ids, tape=tape)
    vectors = {"wte": p["wte.weight"][ids[-1]], "wpe": p["wpe.weight"][len(ids) - 1]}
    sequence = 0  # the only one of the tape, whose arrays have an axis for a batch
    for layer in range(config.n_layer):
        head_outputs = tape[f"attn.{layer}.heads"][sequence, :, -1]  # of the last token, [H, K]
        c_proj = p[f"h.{layer}.attn.c_proj.weight"]
        for head in range(config.n_head):
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
    ],
)
each_text = pytest.mark.parametrize(
    "ids", [pytest.param(IDS, id="text"), pytest.param(IDS[:1], id="one-token")]
)
each_other_token = pytest.mark.parametrize(
    "against", [pytest.param(None, id="logit"), pytest.param(9, id="difference-of-logits")]
)


@each_config
@each_other_token
@each_text
def test_each_part_is_the_vector_that_it_adds_read_by_the_head(config, against, ids):
    """The logit is that of token 7, or the difference of its logit and another one's."""
    model = random_model(config, dtype=np.float64)
    u = model.W_U[:, 7]  # the head reads a vector by its product with u
    if against is not None:
        u = u - model.W_U[:, against]

    # ln_f divides each vector, less its mean, by the standard deviation of their sum.
    vectors = added_vectors(model, ids)
    resid = sum(vectors.values())
    deviation = np.sqrt(resid.var() + config.layer_norm_epsilon)
    expected = {}
    for name, vector in vectors.items():
        normed = (vector - vector.mean()) / deviation * model.parameters["ln_f.weight"]
        expected[name] = normed @ u
    expected["ln_f.bias"] = model.parameters["ln_f.bias"] @ u

    parts = attribute(model, ids, 7, against)
    assert list(parts) == list(expected)
    assert list(parts.values()) == pytest.approx(list(expected.values()), rel=1e-10, abs=1e-12)


@each_config
@each_other_token
@each_text
def test_the_parts_add_up_to_the_logit(config, against, ids):
    model = random_model(config, dtype=np.float64)
    logits = model(ids)[-1]
    expected = logits[7]
    if against is not None:
        expected -= logits[against]
    parts = attribute(model, ids, 7, against)
    assert sum(parts.values()) == pytest.approx(expected, rel=0, abs=1e-10)


@each_config
@each_other_token
@each_text
def test_the_parts_of_a_float32_model(config, against, ids):
    parts = attribute(random_model(config), ids, 7, against)
    expected = attribute(random_model(config, dtype=np.float64), ids, 7, against)
    assert parts == pytest.approx(expected, rel=0, abs=1e-4)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        pytest.param([], "the prompt is empty", id="empty"),
        pytest.param(IDS * 9, "63 tokens, more than the model's context of 31", id="long"),
    ],
)
def test_a_prompt_that_is_refused(model, ids, message):
    with pytest.raises(ArgumentError, match=message):
        attribute(model, ids, 1)


@pytest.mark.parametrize(
    ("token", "message"),
    [
        pytest.param(101, "token id 101 is outside the vocabulary of 101", id="too-large"),
        pytest.param(-1, "token id -1 is outside", id="negative"),
        pytest.param([1], r"must be one sequence of ids|ids must be \[T\]", id="list"),
    ],
)
def test_a_token_that_is_refused(model, token, message):
    with pytest.raises(ArgumentError, match=message):
        attribute(model, IDS, token)
    with pytest.raises(ArgumentError, match=message):
        attribute(model, IDS, 1, against=token)


K = SMALL.head_width


def zero_a_head(p, layer: int, head: int) -> None:
    p[f"h.{layer}.attn.c_proj.weight"][head * K : (head + 1) * K] = 0


def zero_a_module(p, name: str) -> None:
    p[f"{name}.weight"][:] = 0
    p[f"{name}.bias"][:] = 0


# Each of these changes the parameters so that the part adds nothing.
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
def test_an_ablated_model_is_one_whose_weights_are_zero_there(names):
    model = random_model(dtype=np.float64)
    zeroed = random_model(dtype=np.float64)
    for name in names:
        ZEROS[name](zeroed.parameters)
    without = model(IDS, edit=ablation(SMALL, names))
    np.testing.assert_allclose(without, zeroed(IDS), rtol=1e-10)
    assert np.abs(without - model(IDS)).max() > 1e-2


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        pytest.param("attn.1.head.3", r".*attn\.1\.head\.2", id="head-3-of-3"),
        pytest.param("mlp.2", r"mlp\.[01], mlp\.[01], ", id="layer-2-of-2"),
        pytest.param("resid_mid.0", "", id="not-a-part"),
        pytest.param("", "", id="empty"),
    ],
)
def test_a_name_that_is_not_a_part(name, nearest):
    message = f"^{name!r} is not a part that can be removed; the nearest are {nearest}"
    with pytest.raises(ArgumentError, match=message):
        ablation(SMALL, ["mlp.0", name])


def test_a_model_without_layers_has_no_parts_to_remove():
    message = "^'mlp.0' is not a part that can be removed; the nearest are none, for it has no lay"
    with pytest.raises(ArgumentError, match=message):
        ablation(replace(SMALL, n_layer=0), ["mlp.0"])


# An edit of each activation, by tanh, and of each part, which is removed
EDITS = {name: {name: np.tanh} for name in activation_shapes(SMALL)}
for name in ZEROS:
    EDITS[name] = ablation(SMALL, [name])


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize(
    "cuts",
    [pytest.param([1, 2, 3, 4, 5, 6], id="token-by-token"), pytest.param([3, 4, 5], id="pieces")],
)
def test_edits_hold_while_a_cache_grows(name, cuts):
    """The seven tokens are read in one pass, or in pieces that are cut at these places."""
    model = random_model(dtype=np.float64)
    edit = EDITS[name]
    expected = model(IDS, edit=edit)
    assert np.abs(expected - model(IDS)).max() > 1e-3, "the edit changes the logits"
    cache = model.new_cache()
    logits = [model(piece, cache, edit=edit) for piece in np.split(IDS, cuts)]
    np.testing.assert_allclose(np.concatenate(logits), expected, rtol=1e-9, atol=1e-9)


LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -1.0])  # tokens 1 and 3 are the likeliest


def test_a_prediction_is_that_of_the_definitions():
    p = np.exp(LOGITS) / np.exp(LOGITS).sum()
    (prediction,) = predict(LOGITS, [2])
    assert prediction.token == 2
    assert prediction.logit == 2.0
    assert prediction.probability == pytest.approx(p[2])
    assert prediction.rank == 3
    assert prediction.alternatives == []


def test_tokens_with_equal_logits_have_one_rank():
    assert [prediction.rank for prediction in predict(LOGITS, range(5))] == [4, 1, 3, 1, 5]


def test_the_alternatives_are_the_likeliest_tokens():
    p = np.exp(LOGITS) / np.exp(LOGITS).sum()
    (prediction,) = predict(LOGITS, [2], k=3)
    assert [token for token, _ in prediction.alternatives] == [1, 3, 0]
    expected = [np.log(p[1]), np.log(p[3]), np.log(p[0])]
    assert [log_p for _, log_p in prediction.alternatives] == pytest.approx(expected)


def test_the_token_itself_is_not_among_its_alternatives():
    first, second = predict(LOGITS, [3, 1], k=9)
    assert [token for token, _ in first.alternatives] == [1, 2, 0, 4]
    assert [token for token, _ in second.alternatives] == [3, 2, 0, 4]


def test_surprisal_is_in_bits():
    assert surprisal(np.log(1 / 8)) == pytest.approx(3)


def test_logits_that_are_not_finite_predict_nothing():
    with pytest.raises(TiedGPTError, match="not finite numbers"):
        predict(np.array([1.0, np.nan]), [0])


def test_next_tokens_are_the_likeliest_of_either_head():
    untied = random_model(UNTIED, dtype=np.float64)
    tied = untied.tie()
    tied_likeliest = np.argsort(-tied(IDS)[-1])[:3].tolist()
    untied_likeliest = np.argsort(-untied(IDS)[-1])[:3].tolist()
    tokens = []  # the likeliest token of either head comes first, then the second of either
    for pair in zip(tied_likeliest, untied_likeliest, strict=True):
        for token in pair:
            if token not in tokens:
                tokens.append(token)
    by_tied = predict(last_logits(tied, IDS), tokens)
    by_untied = predict(last_logits(untied, IDS), tokens)
    assert next_tokens([tied, untied], IDS, k=3) == [by_tied, by_untied]


@pytest.mark.parametrize("config", [SMALL, UNTIED], ids=["tied", "untied"])
def test_last_logits_are_the_last_row(config):
    model = random_model(config, dtype=np.float64)
    np.testing.assert_allclose(last_logits(model, IDS), model(IDS)[-1], rtol=1e-9)


def test_the_first_of_the_next_tokens_is_the_greedy_one(model):
    ((prediction,),) = next_tokens([model], IDS, k=1)
    assert prediction.token == next(generate(model, IDS, greedy=True))


@pytest.mark.parametrize("stride", [1, 15, 31])
def test_token_predictions_are_of_the_tokens_that_are_scored(stride):
    model = random_model(dtype=np.float64)
    ids = np.random.default_rng(3).integers(0, SMALL.vocab_size, 100)
    predictions = token_predictions(model, ids, stride, k=4)
    places = predicted_places(ids.size, SMALL.n_ctx, stride)
    assert [prediction.token for prediction in predictions] == ids[places].tolist()
    losses = [-prediction.log_probability for prediction in predictions]
    np.testing.assert_allclose(losses, token_losses(model, ids, stride), rtol=1e-12)


def test_token_predictions_have_the_likeliest_other_tokens():
    model = random_model(dtype=np.float64)
    *before, last_token = IDS
    prediction = token_predictions(model, IDS, stride=1, k=4)[-1]
    likeliest = np.argsort(-model(before)[-1]).tolist()
    likeliest.remove(last_token)
    assert [token for token, _ in prediction.alternatives] == likeliest[:4]


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
    """sampled_and_recorded(sampling) -> two rows of 40 tokens, and what was recorded of them.

    With the prompt, a row has 47 tokens, more than the context of 31.
    """

    def sampled_and_recorded(sampling):
        predictions = [[], []]

        def record(row, logits, token):
            predictions[row] += predict(logits, [token], k=2)

        rows = [[], []]
        steps = sample_steps(
            model,
            [IDS, IDS],
            max_new_tokens=40,
            sampling=sampling,
            streams=random_streams(seed=1, n=2),
            record=record,
        )
        for chosen in steps:
            for row, tokens in zip(rows, chosen, strict=True):
                row += tokens
        return rows, predictions

    return sampled_and_recorded


@each_sampling
def test_each_chosen_token_is_recorded_for_its_row(sampled_and_recorded, sampling):
    rows, predictions = sampled_and_recorded(sampling)
    for row, predictions_of_row in zip(rows, predictions, strict=True):
        assert len(row) == 40
        assert [prediction.token for prediction in predictions_of_row] == row


@each_sampling
def test_the_models_own_logits_are_recorded(model, sampled_and_recorded, sampling):
    """Neither the temperature nor top-k changes them. The first 20 tokens fit the context."""
    (first_row, _), (first_predictions, _) = sampled_and_recorded(sampling)
    ids = list(IDS)
    for token, prediction in zip(first_row[:20], first_predictions[:20], strict=True):
        (expected,) = predict(last_logits(model, ids), [token], k=2)
        assert prediction.log_probability == pytest.approx(
            expected.log_probability, rel=1e-4, abs=1e-6
        )
        assert prediction.rank == expected.rank
        ids.append(token)
