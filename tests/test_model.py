"""The forward pass, its cache, its tape and the switch, on small models.

test_goldens.py compares it with transformers.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from support.models import SMALL, random_model

from tiedgpt import GPT2, Config
from tiedgpt.errors import ArgumentError
from tiedgpt.gpt2.model import causal_mask, causal_mask_unequal, merge_heads
from tiedgpt.gpt2.ops import softmax
from tiedgpt.gpt2.parameters import parameter_shapes
from tiedgpt.gpt2.run import activation_shapes

V, N, D, L, H, F = 101, 31, 21, 2, 3, 53
K = D // H
IDS = np.random.default_rng(7).integers(0, V, (5, 13))  # B = 5, T = 13


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_tape_names_every_activation_and_shape(dtype):
    model = random_model(dtype=dtype)
    cache = model.new_cache(batch=5)
    tape = {}
    logits = model(IDS, cache, tape)

    documented = activation_shapes(model.config)
    assert len(documented) == 2 + 16 * L
    documented["logits"] = "B T V"
    assert list(tape) == list(documented)
    sizes = {"B": 5, "T": 13, "S": 13, "D": D, "3D": 3 * D, "H": H, "K": K, "F": F, "V": V}
    for name, letters in documented.items():
        shape = tuple(sizes[letter] for letter in letters.split())
        assert tape[name].shape == shape, name
        assert tape[name].dtype == dtype, name
    np.testing.assert_array_equal(tape["logits"], logits)
    assert cache.keys.dtype == dtype
    assert cache.values.dtype == dtype


def test_one_sequence_has_no_batch_axis_but_on_the_tape(model):
    tape = {}
    assert model(IDS[0].tolist(), tape=tape).shape == (13, V)
    assert model.final(IDS[0]).shape == (13, D)
    assert model.final(IDS).shape == (5, 13, D)
    assert {array.shape[0] for array in tape.values()} == {1}


def test_the_tape_adds_up(model):
    """Each activation is what the ones before it give, so no later step has changed it."""
    model = model.astype(np.float64)
    tape = {}
    model(IDS, tape=tape)
    wte = model.parameters["wte.weight"]
    wpe = model.parameters["wpe.weight"]
    np.testing.assert_array_equal(tape["resid_pre.0"], wte[IDS] + wpe[:13])
    for layer in range(L):
        check_residual_stream(tape, layer)
        check_attention(tape, layer)
    np.testing.assert_allclose(tape["logits"], tape["final"] @ model.W_U, rtol=1e-12, atol=1e-12)


def check_residual_stream(tape, layer):
    """Attention and the MLP add their outputs to it."""
    pre = tape[f"resid_pre.{layer}"]
    mid = tape[f"resid_mid.{layer}"]
    post = tape[f"resid_post.{layer}"]
    np.testing.assert_array_equal(mid, pre + tape[f"attn.{layer}.out"])
    np.testing.assert_array_equal(post, mid + tape[f"mlp.{layer}.out"])


def check_attention(tape, layer):
    """From qkv to the heads' outputs."""
    q = tape[f"attn.{layer}.q"]
    k = tape[f"attn.{layer}.k"]
    v = tape[f"attn.{layer}.v"]
    scores = tape[f"attn.{layer}.scores"]
    pattern = tape[f"attn.{layer}.pattern"]
    merged = np.concatenate([merge_heads(q), merge_heads(k), merge_heads(v)], axis=-1)
    np.testing.assert_array_equal(merged, tape[f"attn.{layer}.qkv"])
    np.testing.assert_allclose(scores, q @ k.swapaxes(2, 3) / math.sqrt(K), rtol=1e-12)
    mask = causal_mask(13, scores.dtype)
    np.testing.assert_allclose(softmax(scores + mask), pattern, rtol=1e-12)
    np.testing.assert_allclose(tape[f"attn.{layer}.heads"], pattern @ v, rtol=1e-12)
    np.testing.assert_allclose(pattern.sum(-1), 1.0)
    assert not np.triu(pattern, k=1).any(), "a token looks into the future"


def test_the_causal_mask_of_unequal_lengths_is_that_of_each_sequence():
    masks = causal_mask_unequal(np.array([0, 2]), T=3, S=5, dtype=np.float32)
    assert masks.shape == (2, 1, 3, 5)
    # The first sequence has three tokens, the second one five.
    np.testing.assert_array_equal(masks[0, 0, :, :3], causal_mask(3, np.float32))
    assert np.isneginf(masks[0, 0, :, 3:]).all()
    np.testing.assert_array_equal(masks[1, 0], causal_mask(5, np.float32)[2:])


@pytest.mark.parametrize("head", ["tied", "untied"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-12)])
def test_sequences_of_unequal_lengths_have_the_logits_of_each_alone(head, dtype, tolerance):
    model = random_model(SMALL.with_head(head), dtype=dtype)
    lengths = [3, 9, 1, 6]
    ids = np.full((4, 9), 7)  # the padding is a token that matters
    for row, length in enumerate(lengths):
        ids[row, :length] = IDS[0, :length]
    cache = model.new_cache(4)
    logits = model(ids, cache, lengths=lengths)
    final = model.final(ids, lengths=lengths)

    caches_alone = []
    for row, length in enumerate(lengths):
        cache_alone = model.new_cache()
        caches_alone.append(cache_alone)
        alone = ids[row, :length]
        expected = model(alone, cache_alone)
        np.testing.assert_allclose(logits[row, :length], expected, atol=tolerance, rtol=0)
        expected = model.final(alone)
        np.testing.assert_allclose(final[row, :length], expected, atol=tolerance, rtol=0)

    # Each sequence continues after its own end: by one token, by several, and by unequal numbers.
    for T, lengths in ((1, [1, 1, 1, 1]), (4, [4, 4, 4, 4]), (3, [1, 3, 2, 3]), (1, [1, 1, 1, 1])):
        ids = IDS[[0, 0, 1, 1], :T]
        logits = model(ids, cache, lengths=lengths)
        for row, length in enumerate(lengths):
            expected = model(ids[row, :length], caches_alone[row])
            np.testing.assert_allclose(logits[row, :length], expected, atol=tolerance, rtol=0)
    assert cache.length.tolist() == [cache_alone.length for cache_alone in caches_alone]


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
    W_U = model.untie("random", seed=1).W_U
    np.testing.assert_array_equal(W_U, model.untie("random", seed=1).W_U)
    assert np.abs(W_U - model.untie("random", seed=2).W_U).max() > 0.01
    assert W_U.dtype == model.dtype
    assert np.std(W_U) == pytest.approx(model.config.initializer_range, rel=0.1)
    assert not model.untie("zeros")(IDS).any()
    np.testing.assert_array_equal(model.untie("random").tie()(IDS), model(IDS))


def test_a_random_W_U_is_not_the_W_E_of_the_same_seed():
    model = GPT2.random(SMALL, seed=3).untie("random", seed=3)
    assert np.abs(model.W_U.T - model.W_E).max() > 1e-3


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


@pytest.mark.parametrize(("ids", "message"), NOT_IDS)
def test_what_is_not_ids_is_refused(model, ids, message):
    with pytest.raises(ArgumentError, match=message):
        model(ids)


NOT_LENGTHS = [[1], [1, 2, 3], [0, 1], [1, 5], [1.0, 2.0], [[1], [2]], [[1], [1, 2]], "ab", 2]


@pytest.mark.parametrize("lengths", NOT_LENGTHS)
def test_what_is_not_lengths_is_refused(model, lengths):
    message = "lengths must be 2 whole numbers from 1 to 4, got "
    with pytest.raises(ArgumentError, match=message):
        model(IDS[:2, :4], lengths=lengths)


NOT_EDITS = [
    pytest.param(
        ["mlp.0.out"],
        r"edit must map names of activations to functions, got \['mlp\.0\.out'\]",
        id="list",
    ),
    pytest.param(
        {"attn.7.out": np.zeros_like},
        r"'attn\.7\.out' is not an activation of this model; the nearest",
        id="unknown-name",
    ),
    pytest.param(
        {"mlp.0.out": 3}, r"the edit of mlp\.0\.out must be a function, got 3", id="no-function"
    ),
    pytest.param(
        {"mlp.0.out": lambda _: "1.0"},
        r"the edit of mlp\.0\.out returned no real numbers, but '1\.0'",
        id="returns-text",
    ),
    pytest.param(
        {"mlp.0.out": lambda x: x + 1j}, "returned no real numbers, but array", id="complex"
    ),
    pytest.param(
        {"mlp.0.out": lambda x: x[0]},
        r"the edit of mlp\.0\.out returned shape .*; expected",
        id="returns-another-shape",
    ),
]


@pytest.mark.parametrize(("edit", "message"), NOT_EDITS)
def test_what_is_not_an_edit_is_refused(model, edit, message):
    with pytest.raises(ArgumentError, match=message):
        model(IDS, edit=edit)


def test_what_is_not_a_cache_or_a_tape_is_refused(model):
    with pytest.raises(ArgumentError, match=r"cache must come from .* new_cache, got True"):
        model(IDS[0], cache=True)
    with pytest.raises(ArgumentError, match=r"tape must be a dict to write to, got \[\]"):
        model(IDS[0], tape=[])


def test_the_cache_of_another_model_is_refused(model):
    with pytest.raises(ArgumentError, match="ids are 5 sequences, the cache holds 1"):
        model(IDS, model.new_cache(1))
    with pytest.raises(ArgumentError, match="the cache was made for another model"):
        model(IDS, model.astype(np.float64).new_cache(5))
    deeper = random_model(replace(SMALL, n_layer=3))
    with pytest.raises(ArgumentError, match="the cache was made for another model"):
        model(IDS, deeper.new_cache(5))


@pytest.mark.parametrize("seed", [-1, 0.5, None])
def test_what_is_not_a_seed_is_refused(model, seed):
    message = "seed must be a whole number of at least 0, got"
    with pytest.raises(ArgumentError, match=message):
        GPT2.random(SMALL, seed)
    with pytest.raises(ArgumentError, match=message):
        model.untie("random", seed)


def test_untie_refuses_an_untied_model_and_another_start(model):
    with pytest.raises(ArgumentError, match=r"untied already; .*model\.tie\(\)\.untie"):
        model.untie().untie()
    with pytest.raises(ArgumentError, match=r'init must be "copy", .*, got .ones.'):
        model.untie("ones")


def test_a_full_cache_is_refused(model):
    cache = model.new_cache(capacity=6)
    model(IDS[0, :6], cache=cache)
    with pytest.raises(
        ArgumentError, match="the cache has 6 tokens, 1 more are given, there is room for 6"
    ):
        model(IDS[0, :1], cache=cache)


def test_a_missing_parameter_is_refused(model):
    parameters = dict(model.parameters)
    del parameters["h.1.ln_2.bias"]
    with pytest.raises(ArgumentError, match=r"h\.1\.ln_2\.bias is missing; expected shape \(21,\)"):
        GPT2(SMALL, parameters)


def test_of_several_missing_parameters_the_first_of_the_table_is_named(model):
    names = list(parameter_shapes(SMALL))
    parameters = {name: model.parameters[name] for name in names[:3]}
    with pytest.raises(ArgumentError, match=r"parameter h\.0\.ln_1\.bias is missing"):
        GPT2(SMALL, parameters)


WRONG_PARAMETERS = [
    pytest.param(
        "lm_head.weight",
        np.zeros((V, D), np.float32),
        r"'lm_head\.weight' is not one of a tied",
        id="head-of-a-tied-model",
    ),
    pytest.param(
        "wpe.weight",
        np.zeros((D, N), np.float32),
        r"wpe\.weight has shape \(21, 31\); expected",
        id="transposed",
    ),
    pytest.param(
        "wte.weight",
        np.zeros((V, D), np.float64),
        "all float32 or all float64, got float32, float64",
        id="two-dtypes",
    ),
]


@pytest.mark.parametrize(("name", "array", "message"), WRONG_PARAMETERS)
def test_a_wrong_parameter_is_refused(model, name, array, message):
    parameters = {**model.parameters, name: array}
    with pytest.raises(ArgumentError, match=message):
        GPT2(SMALL, parameters)


def test_the_order_of_parameters_is_the_tables(model):
    shuffled = dict(reversed(model.parameters.items()))
    assert list(GPT2(SMALL, shuffled).parameters) == list(parameter_shapes(SMALL))


@pytest.mark.parametrize("name", activation_shapes(SMALL))
def test_every_activation_can_be_patched_from_another_run(model, name):
    """Patched by its own value nothing changes; by another prompt's, the tape and the logits do."""
    tape = {}
    clean_logits = model(IDS, tape=tape)
    other_tape = {}
    model(IDS[:, ::-1], tape=other_tape)

    same_logits = model(IDS, edit={name: lambda x: tape[name]})
    np.testing.assert_array_equal(same_logits, clean_logits)

    patched_tape = {}
    patched_logits = model(IDS, tape=patched_tape, edit={name: lambda x: other_tape[name]})
    assert np.abs(patched_logits - clean_logits).max() > 1e-3
    np.testing.assert_array_equal(patched_tape[name], other_tape[name])


def test_an_edit_cannot_change_what_the_tape_recorded(model):
    """Without the edit, resid_pre.1 is the same array as resid_post.0."""
    tape = {}
    model(IDS, tape=tape, edit={"resid_pre.1": lambda x: np.multiply(x, 0, out=x)})
    assert tape["resid_post.0"].any()
    assert not tape["resid_pre.1"].any()
