"""The forward pass, its cache, its tape and the switch, on small models; parity is in
test_goldens.py."""

import math
from dataclasses import replace

import numpy as np
import pytest
from support.models import SMALL, random_model

from tiedgpt import GPT2, Config
from tiedgpt.errors import ArgumentError
from tiedgpt.gpt2.model import causal_mask, merge_heads
from tiedgpt.gpt2.ops import softmax
from tiedgpt.gpt2.parameters import parameter_shapes
from tiedgpt.gpt2.run import activation_shapes

V, N, D, L, H, F = 101, 31, 21, 2, 3, 53
K = D // H
IDS = np.random.default_rng(7).integers(0, V, (5, 13))  # B = 5, T = 13


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_tape_names_every_activation_and_shape(dtype):
    model, tape = random_model(dtype=dtype), {}
    cache = model.new_cache(batch=5)
    logits = model(IDS, cache, tape)
    assert {array.dtype for array in (*tape.values(), cache.keys, cache.values)} == {
        np.dtype(dtype)
    }
    sizes = {"B": 5, "T": 13, "S": 13, "D": D, "3D": 3 * D, "H": H, "K": K, "F": F, "V": V}
    shapes = {**activation_shapes(model.config), "logits": "B T V"}
    assert len(shapes) == 2 + 16 * L + 1
    expected = {name: tuple(map(sizes.get, letters.split())) for name, letters in shapes.items()}
    assert {name: array.shape for name, array in tape.items()} == expected
    np.testing.assert_array_equal(tape["logits"], logits)
    assert model.final(IDS).shape == (5, 13, D)
    # Of one sequence, the logits have no batch axis; the tape always has it.
    assert model(IDS[0].tolist(), tape=tape).shape == (13, V)
    assert model.final(IDS[0]).shape == (13, D)
    assert {array.shape[0] for array in tape.values()} == {1}


def test_the_tape_adds_up(model):
    """What is recorded is what was computed with, unharmed by later steps: the residual stream adds
    up."""
    model = model.astype(np.float64)
    tape = {}
    model(IDS, tape=tape)
    wte, wpe = model.parameters["wte.weight"], model.parameters["wpe.weight"]
    np.testing.assert_array_equal(tape["resid_pre.0"], wte[IDS] + wpe[:13])
    for layer in range(L):
        pre, mid, post = (tape[f"resid_{name}.{layer}"] for name in ("pre", "mid", "post"))
        np.testing.assert_array_equal(mid, pre + tape[f"attn.{layer}.out"])
        np.testing.assert_array_equal(post, mid + tape[f"mlp.{layer}.out"])
        names = ("qkv", "q", "k", "v", "scores", "pattern", "heads")
        qkv, q, k, v, scores, pattern, heads = (tape[f"attn.{layer}.{name}"] for name in names)
        np.testing.assert_array_equal(
            np.concatenate([merge_heads(x) for x in (q, k, v)], axis=-1), qkv
        )
        np.testing.assert_allclose(scores, q @ k.swapaxes(-1, -2) / math.sqrt(K), rtol=1e-12)
        mask = causal_mask(scores.shape[-1], scores.dtype)
        np.testing.assert_allclose(softmax(scores + mask), pattern, rtol=1e-12)
        np.testing.assert_allclose(heads, pattern @ v, rtol=1e-12)
        np.testing.assert_allclose(pattern.sum(-1), 1.0)
        assert not np.triu(pattern, k=1).any(), "a token looks into the future"
    np.testing.assert_allclose(tape["logits"], tape["final"] @ model.W_U, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("head", ["tied", "untied"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-12)])
def test_sequences_of_unequal_lengths_have_the_logits_of_each_alone(head, dtype, tolerance):
    model = random_model(SMALL.with_head(head), dtype=dtype)
    lengths = [3, 9, 1, 6]
    rows = [list(IDS[0, :n]) for n in lengths]
    ids = np.array(
        [row + [7] * (9 - len(row)) for row in rows]
    )  # the padding is a token that matters
    cache = model.new_cache(4)
    logits, final = model(ids, cache, lengths=lengths), model.final(ids, lengths=lengths)
    alone = [model.new_cache() for _ in rows]
    for row, n in enumerate(lengths):
        np.testing.assert_allclose(
            logits[row, :n], model(rows[row], alone[row]), atol=tolerance, rtol=0
        )
        np.testing.assert_allclose(final[row, :n], model.final(rows[row]), atol=tolerance, rtol=0)
    # Each sequence continues after its own end: by one token, by several, and by unequal numbers.
    for T, more in ((1, None), (4, None), (3, [1, 3, 2, 3]), (1, None)):
        ids = IDS[:, :T].repeat(2, axis=0)[:4]
        logits = model(ids, cache, lengths=more)
        for row in range(4):
            n = T if more is None else more[row]
            expected = model(ids[row, :n], alone[row])
            np.testing.assert_allclose(logits[row, :n], expected, atol=tolerance, rtol=0)
    assert cache.length.tolist() == [cache.length for cache in alone]


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_the_output_matrix(head):
    model = random_model(SMALL.with_head(head))
    W_U = model.parameters["wte.weight" if head == "tied" else "lm_head.weight"].T
    assert np.shares_memory(model.W_U, model.W_E) == (head == "tied")
    np.testing.assert_array_equal(model.W_U, W_U)
    np.testing.assert_allclose(model(IDS), model.final(IDS) @ W_U, rtol=1e-4, atol=1e-4)
    tied = model.tie()
    assert "lm_head.weight" not in tied.parameters
    assert (np.abs(model(IDS) - tied(IDS)).max() > 0.1) == (head == "untied")


@pytest.mark.parametrize("init", ["copy", "random", "zeros"])
def test_untie_returns_a_new_model(init):
    model = random_model(replace(SMALL, vocab_size=1000, n_embd=66))
    untied = model.untie(init)
    assert (model.config.tied, untied.config.tied) == (True, False)
    assert untied.W_E is model.W_E, "wte is untouched"
    assert not np.shares_memory(untied.W_U, untied.W_E)
    assert untied.W_U.__array_interface__["data"][0] % 64 == 0, "it starts at a cache line"
    if init == "copy":  # no bit of the logits changes
        for ids in ([1], [1, 2], [[1], [2]], list(range(31))):
            np.testing.assert_array_equal(untied(ids), model(ids))


def test_untie_at_random_and_by_zeros(model):
    a, b, other = (model.untie("random", seed=seed).W_U for seed in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert np.abs(a - other).max() > 0.01
    assert a.dtype == model.dtype
    both = GPT2.random(SMALL, seed=3).untie("random", seed=3)
    assert np.abs(both.W_U.T - both.W_E).max() > 1e-3
    assert np.std(a) == pytest.approx(model.config.initializer_range, rel=0.1)
    assert not model.untie("zeros")(IDS).any()
    np.testing.assert_array_equal(model.untie("random").tie()(IDS), model(IDS))


def test_a_model_describes_itself(model):
    sizes = "n_layer=2, n_head=3, n_embd=21, n_ctx=31, vocab_size=101, float32"
    assert repr(model) == f"GPT2(tied, 11,278 parameters, {sizes})"


def test_random_is_gpt2s_initialisation():
    model = GPT2.random(Config(vocab_size=997, n_ctx=64, n_embd=64, n_layer=8, n_head=4), seed=3)
    for name, array in model.parameters.items():
        if name.endswith("bias"):
            assert not array.any()
        elif "ln_" in name:
            assert (array == 1).all()
        else:
            std = 0.02 / 4 if name.endswith("c_proj.weight") else 0.02  # 4 = sqrt(2 L)
            assert array.std() == pytest.approx(std, rel=0.05), name
    np.testing.assert_array_equal(GPT2.random(model.config, seed=3).W_E, model.W_E)


NOT_IDS = [
    ([], r"at least one token, got shape \(0,\)"),
    ([[]], r"at least one token, got shape \(1, 0\)"),
    ("text", r"expected token ids, got text: encode it first, with tokenizer\.encode"),
    (3, r"ids must be \[T\] or \[B, T\]"),
    ([[[1]]], r"got shape \(1, 1, 1\)"),
    ([1.0, 2.0], "ids must be whole numbers, got float64"),
    (["a"], "ids must be whole numbers, got <U1"),
    ([0, -1], r"token id -1 is outside the vocabulary of 101 \(0 to 100\)"),
    ([0, V], "token id 101 is outside the vocabulary of 101"),
    ([2**70], "ids must be whole numbers"),
    ([[1, 2], [3]], r"ids must be \[T\] or \[B, T\]: "),
    (np.zeros(N + 1, int), "32 tokens, more than the model.s context of 31"),
]
NOT_LENGTHS = [[1], [1, 2, 3], [0, 1], [1, 5], [1.0, 2.0], [[1], [2]], [[1], [1, 2]], "ab", 2]
NOT_EDITS = [
    (
        {"attn.7.out": np.zeros_like},
        r"'attn\.7\.out' is not an activation of this model; the nearest",
    ),
    ({"mlp.0.out": 3}, r"the edit of mlp\.0\.out must be a function, got 3"),
    (
        {"mlp.0.out": lambda _: "1.0"},
        r"the edit of mlp\.0\.out returned no real numbers, but '1\.0'",
    ),
    ({"mlp.0.out": lambda x: x + 1j}, r"returned no real numbers, but array"),
    (["mlp.0.out"], r"edit must map names of activations to functions, got \['mlp\.0\.out'\]"),
    ({"mlp.0.out": lambda x: x[0]}, r"the edit of mlp\.0\.out returned shape .*; expected"),
]
DEEPER = random_model(replace(SMALL, n_layer=3))
LENGTHS = "lengths must be 2 whole numbers from 1 to 4, got "
SEED = "seed must be a whole number of at least 0, got"
REFUSED = [
    *((lambda model, ids=ids: model(ids), message) for ids, message in NOT_IDS),
    *((lambda model, n=n: model(IDS[:2, :4], lengths=n), LENGTHS) for n in NOT_LENGTHS),
    *((lambda model, edit=edit: model(IDS, edit=edit), message) for edit, message in NOT_EDITS),
    (
        lambda model: model(IDS[0], cache=True),
        "cache must come from this model's new_cache, got True",
    ),
    (lambda model: model(IDS[0], tape=[]), r"tape must be a dict to write to, got \[\]"),
    (lambda model: model(IDS, model.new_cache(1)), "ids are 5 sequences, the cache holds 1"),
    (
        lambda model: model(IDS, model.astype("f8").new_cache(5)),
        "the cache was made for another model",
    ),
    (lambda model: model(IDS, DEEPER.new_cache(5)), "the cache was made for another model"),
    *((lambda _, seed=seed: GPT2.random(SMALL, seed), SEED) for seed in (-1, 0.5, None)),
    *((lambda model, seed=seed: model.untie("random", seed), SEED) for seed in (-1, 0.5, None)),
    (lambda model: model.untie().untie(), r"untied already; .*model\.tie\(\)\.untie"),
    (lambda model: model.untie("ones"), 'init must be "copy", "random" or "zeros", got \'ones\''),
]


@pytest.mark.parametrize(("use", "message"), REFUSED)
def test_bad_arguments_are_refused(model, use, message):
    with pytest.raises(ArgumentError, match=message):
        use(model)


def test_a_full_cache_is_refused(model):
    cache = model.new_cache(capacity=6)
    model(IDS[0, :6], cache=cache)
    with pytest.raises(
        ArgumentError, match="the cache has 6 tokens, 1 more are given, there is room for 6"
    ):
        model(IDS[0, :1], cache=cache)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"h.1.ln_2.bias": None}, r"parameter h\.1\.ln_2\.bias is missing; expected shape \(21,\)"),
        # of several that are missing, the first in the table's order
        (
            dict.fromkeys(list(parameter_shapes(SMALL))[3:]),
            r"parameter h\.0\.ln_1\.bias is missing",
        ),
        (
            {"lm_head.weight": np.zeros((V, D), np.float32)},
            r"'lm_head\.weight' is not one of a tied",
        ),
        (
            {"wpe.weight": np.zeros((D, N), np.float32)},
            r"wpe\.weight has shape \(21, 31\); expected",
        ),
        ({"wte.weight": np.zeros((V, D))}, "all float32 or all float64, got float32, float64"),
    ],
)
def test_parameters_must_be_those_of_the_configuration(model, changes, message):
    parameters = {
        name: array for name, array in {**model.parameters, **changes}.items() if array is not None
    }
    with pytest.raises(ArgumentError, match=message):
        GPT2(SMALL, parameters)


def test_the_order_of_parameters_is_the_tables(model):
    shuffled = dict(reversed(model.parameters.items()))
    assert list(GPT2(SMALL, shuffled).parameters) == list(parameter_shapes(SMALL))


@pytest.mark.parametrize("name", activation_shapes(SMALL))
def test_every_activation_can_be_patched_from_another_run(model, name):
    """Patched by its own value nothing changes; by another prompt's, the tape and the logits do."""
    tape, other, patched = {}, {}, {}
    clean = model(IDS, tape=tape)
    model(IDS[:, ::-1], tape=other)
    np.testing.assert_array_equal(model(IDS, edit={name: lambda _: tape[name]}), clean)
    assert np.abs(model(IDS, tape=patched, edit={name: lambda _: other[name]}) - clean).max() > 1e-3
    np.testing.assert_array_equal(patched[name], other[name])
    assert list(tape) == [*activation_shapes(SMALL), "logits"]


def test_an_edit_cannot_change_what_the_tape_recorded(model):
    """Without the edit, resid_pre.1 is the same array as resid_post.0."""
    tape = {}
    model(IDS, tape=tape, edit={"resid_pre.1": lambda x: np.multiply(x, 0, out=x)})
    assert tape["resid_post.0"].any()
    assert not tape["resid_pre.1"].any()
