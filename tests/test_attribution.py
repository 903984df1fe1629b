"""Where a logit comes from, what the model is without some parts, and how single tokens are
predicted."""

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


@pytest.mark.parametrize("config", [SMALL, UNTIED, replace(UNTIED, n_layer=0)])
@pytest.mark.parametrize("against", [None, 9])
@pytest.mark.parametrize("ids", [IDS, IDS[:1]])
def test_each_part_is_the_vector_that_it_adds_read_by_the_head(config, against, ids):
    """Each vector by itself, through the whole of ln_f in float64, in the order of the forward
    pass."""
    model = random_model(config, dtype=np.float64)
    p, tape = model.parameters, {}
    logits = model(ids, tape=tape)[-1]
    u, logit = model.W_U[:, 7], logits[7]
    if against:
        u, logit = u - model.W_U[:, against], logit - logits[against]
    vectors = {"wte": p["wte.weight"][ids[-1]], "wpe": p["wpe.weight"][len(ids) - 1]}
    for layer in range(config.n_layer):
        weight = p[f"h.{layer}.attn.c_proj.weight"]
        for head in range(config.n_head):
            alone = np.zeros((config.n_head, config.head_width))
            alone[head] = tape[f"attn.{layer}.heads"][0, head, -1]
            vectors[f"attn.{layer}.head.{head}"] = alone.ravel() @ weight
        vectors[f"attn.{layer}.bias"] = p[f"h.{layer}.attn.c_proj.bias"]
        vectors[f"mlp.{layer}"] = (
            tape[f"mlp.{layer}.post"][0, -1] @ p[f"h.{layer}.mlp.c_proj.weight"]
        )
        vectors[f"mlp.{layer}.bias"] = p[f"h.{layer}.mlp.c_proj.bias"]
    resid = sum(vectors.values())
    scale = np.sqrt(np.mean((resid - resid.mean()) ** 2) + config.layer_norm_epsilon)
    expected = {
        name: (vector - vector.mean()) / scale * p["ln_f.weight"] @ u
        for name, vector in vectors.items()
    }
    expected["ln_f.bias"] = p["ln_f.bias"] @ u
    parts = attribute(model, ids, 7, against)
    assert list(parts) == list(expected)
    assert sum(parts.values()) == pytest.approx(logit, rel=0, abs=1e-10)
    assert list(parts.values()) == pytest.approx(list(expected.values()), rel=1e-10, abs=1e-12)
    single = attribute(random_model(config), ids, 7, against)
    assert list(single.values()) == pytest.approx(list(parts.values()), rel=0, abs=1e-4), (
        "of float32"
    )


@pytest.mark.parametrize(
    ("ids", "token", "message"),
    [
        ([], 1, "the prompt is empty"),
        (IDS * 9, 1, "63 tokens, more than the model's context of 31"),
        (IDS, 101, r"token id 101 is outside the vocabulary of 101"),
        (IDS, -1, r"token id -1 is outside"),
        (IDS, [1], r"must be one sequence of ids|ids must be \[T\]"),
    ],
)
def test_what_cannot_be_attributed(model, ids, token, message):
    with pytest.raises(ArgumentError, match=message):
        attribute(model, ids, token)
    if ids == IDS:
        with pytest.raises(ArgumentError, match=message):
            attribute(model, ids, 1, against=token)


EVERY = slice(None)
K = SMALL.head_width
# The part -> a module, and the rows of its weight that are set to 0; its bias too if all are.
ABLATIONS = {
    "attn.1.head.2": ("h.1.attn.c_proj", slice(2 * K, 3 * K)),
    "attn.0": ("h.0.attn.c_proj", EVERY),
    "mlp.1": ("h.1.mlp.c_proj", EVERY),
    "attn.1.head.0": ("h.1.attn.c_proj", slice(0, K)),
}


@pytest.mark.parametrize(
    "names", [*([name] for name in ABLATIONS), ["attn.1.head.2", "attn.1.head.0", "mlp.1"]]
)
def test_an_ablated_model_is_one_whose_weights_are_zero_there(names):
    model, zeroed = random_model(dtype=np.float64), random_model(dtype=np.float64)
    for module, rows in (ABLATIONS[name] for name in names):
        zeroed.parameters[f"{module}.weight"][rows] = 0
        if rows is EVERY:
            zeroed.parameters[f"{module}.bias"][:] = 0
    without = model(IDS, edit=ablation(SMALL, names))
    np.testing.assert_allclose(without, zeroed(IDS), rtol=1e-10)
    assert np.abs(without - model(IDS)).max() > 1e-2


@pytest.mark.parametrize(
    ("n_layer", "name", "nearest"),
    [
        (2, "attn.1.head.3", r".*attn\.1\.head\.2"),
        (2, "mlp.2", r"mlp\.[01], mlp\.[01], "),
        (2, "resid_mid.0", ""),
        (2, "", ""),
        (0, "mlp.0", "none, for it has no layers"),
    ],
)
def test_names_that_are_no_parts(n_layer, name, nearest):
    message = f"^{name!r} is not a part that can be removed; the nearest are {nearest}"
    with pytest.raises(ArgumentError, match=message):
        ablation(replace(SMALL, n_layer=n_layer), [*["mlp.0"] * (n_layer > 0), name])


@pytest.mark.parametrize("name", [*activation_shapes(SMALL), *ABLATIONS])
def test_edits_hold_while_a_cache_grows(name):
    """Token by token, or a few at once, an edited model's logits are those of one edited pass."""
    model = random_model(dtype=np.float64)
    edit = ablation(SMALL, [name]) if name in ABLATIONS else {name: np.tanh}
    expected = model(IDS, edit=edit)
    assert np.abs(expected - model(IDS)).max() > 1e-3
    for cuts in (range(1, len(IDS)), [3, 4, 5]):
        cache = model.new_cache()
        rows = [model(piece, cache, edit=edit) for piece in np.split(IDS, cuts)]
        np.testing.assert_allclose(np.concatenate(rows), expected, rtol=1e-9, atol=1e-9)


def test_a_prediction_is_that_of_the_definitions():
    logits = np.array([1.0, 3.0, 2.0, 3.0, -1.0])
    p = np.exp(logits) / np.exp(logits).sum()
    (second,) = predict(logits, [2], k=3)
    assert (second.token, second.logit, second.rank) == (2, 2.0, 3)
    assert second.probability == pytest.approx(p[2])
    assert [token for token, _ in second.alternatives] == [1, 3, 0]
    assert [log_p for _, log_p in second.alternatives] == pytest.approx(np.log(p[[1, 3, 0]]))
    assert [one.rank for one in predict(logits, range(5))] == [4, 1, 3, 1, 5], (
        "two are the likeliest"
    )
    both = predict(logits, [3, 1], k=9)
    assert [[token for token, _ in one.alternatives] for one in both] == [
        [1, 2, 0, 4],
        [3, 2, 0, 4],
    ]
    assert predict(logits, [3])[0].alternatives == []
    assert surprisal(np.log(1 / 8)) == pytest.approx(3)
    with pytest.raises(TiedGPTError, match="not finite numbers"):
        predict(np.array([1.0, np.nan]), [0])


def test_next_tokens_are_the_likeliest_of_either_head():
    untied = random_model(UNTIED, dtype=np.float64)
    models = [untied.tie(), untied]
    logits = [model(IDS)[-1] for model in models]
    order = [np.argsort(-row)[:3].tolist() for row in logits]
    tokens = list(dict.fromkeys(token for pair in zip(*order, strict=True) for token in pair))
    assert next_tokens(models, IDS, k=3) == [
        predict(last_logits(model, IDS), tokens) for model in models
    ]
    for model, row in zip(models, logits, strict=True):
        np.testing.assert_allclose(last_logits(model, IDS), row, rtol=1e-9)


@pytest.mark.parametrize("stride", [1, 15, 31])
def test_token_predictions_are_of_the_tokens_that_are_scored(stride):
    model = random_model(dtype=np.float64)
    ids = np.random.default_rng(3).integers(0, SMALL.vocab_size, 100)
    predictions = token_predictions(model, ids, stride, k=4)
    places = predicted_places(ids.size, SMALL.n_ctx, stride)
    assert [one.token for one in predictions] == ids[places].tolist()
    losses = token_losses(model, ids, stride)
    np.testing.assert_allclose([-one.log_probability for one in predictions], losses, rtol=1e-12)
    row = model(ids[: places[4]])[-1]
    others = [token for token in np.argsort(-row).tolist() if token != ids[places[4]]][:4]
    assert [token for token, _ in predictions[4].alternatives] == others


@pytest.mark.parametrize("settings", [{}, {"greedy": True}, {"temperature": 0.5, "top_k": 3}])
def test_the_models_own_logits_are_recorded_past_the_context(model, settings):
    """Whatever the temperature."""
    recorded = [], []

    def record(row, logits, token):
        recorded[row].extend(predict(logits, [token], k=2))

    sampling, streams = Sampling(**settings), random_streams(1, 2)
    steps = list(sample_steps(model, [IDS, IDS], 40, sampling, streams, record=record))
    for row in range(2):
        assert [one.token for one in recorded[row]] == [step[row][0] for step in steps]
    read = list(IDS)
    for ((token,), _), one in zip(steps[:20], recorded[0], strict=False):
        (expected,) = predict(last_logits(model, read), [token], k=2)
        assert one.log_probability == pytest.approx(expected.log_probability, rel=1e-4, abs=1e-6)
        assert one.rank == expected.rank
        read.append(token)
    assert next(generate(model, IDS, greedy=True)) == next_tokens([model], IDS, 1)[0][0].token
