"""The forward pass on small models: its cache, its tape and its edits; and how to tie and untie.

The cache keeps the keys and values of the tokens that were read. The tape is a dict to which the
forward pass writes every activation: tape["attn.0.q"] are the queries of layer 0. An edit is a
function that gets an activation and returns another array in its place. `untie` returns a model
with an output matrix of its own, and `tie` one whose output matrix is the token embedding wte.

IDS are B sequences of T tokens. The fixture `model` is a tied model. Its sizes are those of SMALL:
V tokens, a context of N, L layers, H heads of width K, and D and F values inside.
test_goldens.py compares the logits with those of transformers.
"""

import math
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from support.checks import wait_until
from support.models import SMALL, random_model

from tiedgpt import GPT2, Config, threads
from tiedgpt.errors import ArgumentError, TiedGPTError
from tiedgpt.gpt2 import prefill
from tiedgpt.gpt2.checks import check_logits
from tiedgpt.gpt2.model import causal_mask, merge_heads, transformer
from tiedgpt.gpt2.ops import softmax
from tiedgpt.gpt2.parameters import nest, parameter_shapes
from tiedgpt.gpt2.run import Run, activation_shapes

V = SMALL.vocab_size
N = SMALL.n_ctx
D = SMALL.n_embd
L = SMALL.n_layer
H = SMALL.n_head
F = SMALL.n_inner
K = D // H  # the width of a head
B = 5
T = 13
IDS = np.random.default_rng(7).integers(0, V, (B, T))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_tape_names_every_activation_and_shape(dtype):
    model = random_model(dtype=dtype)
    cache = model.new_cache(batch=B)
    cached = 4  # tokens that were read before, so that there are more keys than queries
    model(IDS[:, :cached], cache)
    tape = {}
    logits = model(IDS[:, cached:], cache, tape)

    documented = activation_shapes(model.config)  # a name -> its axes, such as "B T D"
    assert len(documented) == 2 + 16 * L, "embed, final, and 16 in each block"
    documented["logits"] = "B T V"
    assert list(tape) == list(documented)
    sizes = {"B": B, "T": T - cached, "S": T, "D": D, "3D": 3 * D, "H": H, "K": K, "F": F, "V": V}
    for name, letters in documented.items():
        shape = tuple(sizes[letter] for letter in letters.split())
        assert tape[name].shape == shape, name
        assert tape[name].dtype == dtype, name
    np.testing.assert_array_equal(tape["logits"], logits)
    assert cache.keys.dtype == dtype
    assert cache.values.dtype == dtype


def test_one_sequence_has_no_batch_axis(model):
    assert model(IDS[0].tolist()).shape == (T, V)
    assert model.final(IDS[0]).shape == (T, D)
    assert model.final(IDS).shape == (B, T, D)


def test_a_batch_may_have_more_sequences_than_the_context_has_tokens(model):
    assert model(np.ones((N + 1, 1), int)).shape == (N + 1, 1, V)


def test_on_the_tape_one_sequence_is_a_batch_of_one(model):
    tape = {}
    model(IDS[0], tape=tape)
    assert {array.shape[0] for array in tape.values()} == {1}


def test_each_activation_on_the_tape_follows_from_those_before_it(model):
    """So no later step of the forward pass has changed an activation on the tape."""
    model = model.astype(np.float64)
    tape = {}
    model(IDS, tape=tape)
    wte = model.parameters["wte.weight"]
    wpe = model.parameters["wpe.weight"]
    np.testing.assert_array_equal(tape["resid_pre.0"], wte[IDS] + wpe[:T])
    for layer in range(L):
        check_residual_stream(tape, layer)
        check_attention(tape, layer)
    np.testing.assert_allclose(tape["logits"], tape["final"] @ model.W_U, rtol=1e-12, atol=1e-12)


def check_residual_stream(tape, layer):
    """Attention and the MLP add their outputs to the residual stream."""
    pre = tape[f"resid_pre.{layer}"]
    mid = tape[f"resid_mid.{layer}"]
    post = tape[f"resid_post.{layer}"]
    np.testing.assert_array_equal(mid, pre + tape[f"attn.{layer}.out"])
    np.testing.assert_array_equal(post, mid + tape[f"mlp.{layer}.out"])


def test_the_mask_is_minus_infinity_for_the_keys_that_come_after_a_query():
    inf = np.inf
    expected = [[0, -inf, -inf], [0, 0, -inf], [0, 0, 0]]
    np.testing.assert_array_equal(causal_mask(3, np.float32), np.array(expected, np.float32))


def check_attention(tape, layer):
    """Each step of attention, from qkv to the heads' outputs, follows from the one before."""
    q = tape[f"attn.{layer}.q"]
    k = tape[f"attn.{layer}.k"]
    v = tape[f"attn.{layer}.v"]
    scores = tape[f"attn.{layer}.scores"]
    pattern = tape[f"attn.{layer}.pattern"]
    merged = np.concatenate([merge_heads(q), merge_heads(k), merge_heads(v)], axis=-1)
    np.testing.assert_array_equal(merged, tape[f"attn.{layer}.qkv"])
    np.testing.assert_allclose(scores, q @ k.swapaxes(2, 3) / math.sqrt(K), rtol=1e-12)
    mask = causal_mask(T, scores.dtype)
    np.testing.assert_allclose(softmax(scores + mask), pattern, rtol=1e-12)
    np.testing.assert_allclose(tape[f"attn.{layer}.heads"], pattern @ v, rtol=1e-12)
    np.testing.assert_allclose(pattern.sum(-1), 1.0)
    assert not np.triu(pattern, k=1).any(), "a token looks into the future"


@pytest.mark.parametrize(("head", "name"), [("tied", "wte.weight"), ("untied", "lm_head.weight")])
def test_logits_are_the_final_states_times_the_output_matrix(head, name):
    model = random_model(SMALL.with_head(head))
    W_U = model.parameters[name].T
    assert np.shares_memory(model.W_U, model.parameters[name])
    np.testing.assert_array_equal(model.W_U, W_U)
    np.testing.assert_allclose(model(IDS), model.final(IDS) @ W_U, rtol=1e-4, atol=1e-4)


def test_tie_drops_the_output_matrix():
    model = random_model(SMALL.with_head("untied"))
    tied = model.tie()
    assert "lm_head.weight" not in tied.parameters
    assert np.shares_memory(tied.W_U, model.W_E)
    assert np.abs(tied(IDS) - model(IDS)).max() > 0.1, "the output matrix was not wte"


def test_tie_leaves_a_tied_model_as_it_is(model):
    tied = model.tie()
    assert list(tied.parameters) == list(model.parameters)
    np.testing.assert_array_equal(tied(IDS), model(IDS))


# A row of wte has 66 * 4 = 264 bytes, which are no multiple of a cache line's 64. So a product with
# a copy of wte at another address may differ in its last bits.
ROWS_OFF_CACHE_LINES = replace(SMALL, vocab_size=1000, n_embd=66)


@pytest.mark.parametrize("init", ["copy", "random", "zeros"])
def test_untie_returns_a_new_model_with_an_output_matrix_of_its_own(init):
    model = random_model(ROWS_OFF_CACHE_LINES)
    untied = model.untie(init)
    assert model.config.tied
    assert not untied.config.tied
    assert untied.W_E is model.W_E, "wte is not copied"
    assert not np.shares_memory(untied.W_U, untied.W_E)


@pytest.mark.parametrize("ids", [[1], [1, 2], [[1], [2]], list(range(31))])
def test_untie_by_a_copy_changes_no_bit_of_the_logits(ids):
    model = random_model(ROWS_OFF_CACHE_LINES)
    np.testing.assert_array_equal(model.untie("copy")(ids), model(ids))
    np.testing.assert_array_equal(model.untie()(ids), model(ids))


def test_a_model_that_is_untied_with_zeros_has_logits_of_zero(model):
    assert not model.untie("zeros")(IDS).any()


@pytest.mark.parametrize("deviation", [0.02, 0.5])
def test_a_random_output_matrix_repeats_with_its_seed_and_has_gpt2s_deviation(deviation):
    model = random_model(replace(SMALL, initializer_range=deviation))
    W_U = model.untie("random", seed=1).W_U
    np.testing.assert_array_equal(W_U, model.untie("random", seed=1).W_U)
    assert np.abs(W_U - model.untie("random", seed=2).W_U).max() > 0.01
    assert W_U.dtype == model.dtype
    assert np.std(W_U) == pytest.approx(deviation, rel=0.1)


def test_tie_undoes_untie(model):
    np.testing.assert_array_equal(model.untie("random").tie()(IDS), model(IDS))


def test_a_random_W_U_is_not_the_W_E_of_the_same_seed():
    model = GPT2.random(SMALL, seed=3).untie("random", seed=3)
    assert np.abs(model.W_U.T - model.W_E).max() > 1e-3


def test_a_model_describes_itself(model):
    sizes = "n_layer=2, n_head=3, n_embd=21, n_ctx=31, vocab_size=101, float32"
    assert repr(model) == f"GPT2(tied, 11,278 parameters, {sizes})"
    assert repr(model.untie()) == f"GPT2(untied, 13,399 parameters, {sizes})"
    assert repr(model.astype(np.float64)).endswith(", vocab_size=101, float64)")


def test_random_is_gpt2s_initialisation():
    deviation = 0.5  # 0.02 is the default
    sizes = {"vocab_size": 997, "n_ctx": 64, "n_embd": 64, "n_layer": 8, "n_head": 4}
    model = GPT2.random(Config(**sizes, initializer_range=deviation), seed=3)
    for name, array in model.parameters.items():
        if name.endswith("bias"):
            assert not array.any()
        elif "ln_" in name:
            assert (array == 1).all()
        elif name.endswith("c_proj.weight"):
            # 16 matrices, two in each of 8 layers, write to the residual stream. So their
            # standard deviation is divided by sqrt(16) = 4.
            assert array.std() == pytest.approx(deviation / 4, rel=0.05), name
        else:
            assert array.std() == pytest.approx(deviation, rel=0.05), name


def test_random_numbers_are_those_of_older_versions():
    """A model, an output matrix and new rows have three streams of random numbers of a seed."""

    def drawn(seed, stream, dtype=np.float32):
        numbers = np.random.default_rng([seed, stream]).standard_normal((V, D), dtype)
        return numbers * dtype(SMALL.initializer_range)

    model = GPT2.random(SMALL, seed=3)
    np.testing.assert_array_equal(model.W_E, drawn(3, 0))
    np.testing.assert_array_equal(model.untie("random", seed=5).W_U.T, drawn(5, 1))
    new_rows = model.resize(2 * V, "random", seed=7).W_E[V:]
    mean = model.W_E.mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(new_rows, mean + drawn(7, 2, np.float64), atol=1e-7)
    # The seed is 0 if none is given.
    np.testing.assert_array_equal(GPT2.random(SMALL).W_E, drawn(0, 0))
    np.testing.assert_array_equal(model.untie("random").W_U.T, drawn(0, 1))
    first_new_row = model.resize(2 * V, "random").W_E[V]
    np.testing.assert_allclose(first_new_row, mean + drawn(0, 2, np.float64)[0], atol=1e-7)


def test_a_changed_model_keeps_the_fields_of_other_programs():
    config = replace(SMALL, others={"pad_token_id": 7})
    model = random_model(config)
    untied = model.untie()
    for changed in (untied, untied.tie(), model.resize(V + 1), model.astype(np.float64)):
        assert changed.config.others == {"pad_token_id": 7}


def test_twelve_layers_are_in_their_order():
    tree = nest({f"h.{layer}.ln_1.weight": layer for layer in range(12)})
    assert [block["ln_1"]["weight"] for block in tree["h"]] == list(range(12))


def test_random_repeats_with_its_seed():
    first = GPT2.random(SMALL, seed=3)
    second = GPT2.random(SMALL, seed=3)
    for name, array in first.parameters.items():
        np.testing.assert_array_equal(second.parameters[name], array)
    assert np.abs(GPT2.random(SMALL, seed=4).W_E - first.W_E).max() > 0.01


NOT_IDS = [
    pytest.param([[]], r"at least one token, got shape \(1, 0\)", id="no-token-in-a-batch"),
    pytest.param(b"text", "expected token ids, got text: encode it first", id="bytes"),
    pytest.param(3, r"ids must be \[T\] or \[B, T\]", id="a-number"),
    pytest.param([[[1]]], r"got shape \(1, 1, 1\)", id="three-axes"),
    pytest.param([True], "ids must be whole numbers, got bool", id="booleans"),
    pytest.param(["a"], "ids must be whole numbers, got <U1", id="texts"),
    pytest.param(
        [0, -1], r"token id -1 is outside the vocabulary of 101 \(0 to 100\)", id="below-0"
    ),
    pytest.param([0, V], "token id 101 is outside the vocabulary of 101", id="above-the-last"),
    pytest.param([2**70], "ids must be whole numbers", id="above-int64"),
]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
def test_ids_may_be_whole_numbers_of_any_type(model, dtype):
    np.testing.assert_array_equal(model(IDS.astype(dtype)), model(IDS))


@pytest.mark.parametrize(("ids", "message"), NOT_IDS)
def test_what_is_not_ids_is_refused(model, ids, message):
    with pytest.raises(ArgumentError, match=message):
        model(ids)


NOT_EDITS = [
    pytest.param(
        {"mlp.0.out": np.zeros_like, "mlp.7.out": np.zeros_like},
        r"'mlp\.7\.out' is not an activation of this model; the nearest",
        id="second-unknown-name",
    ),
    pytest.param(
        {"mlp.0.out": lambda x: x + 1j}, "returned no real numbers, but array", id="complex"
    ),
]


@pytest.mark.parametrize(("edit", "message"), NOT_EDITS)
def test_what_is_not_an_edit_is_refused(model, edit, message):
    with pytest.raises(ArgumentError, match=message):
        model(IDS, edit=edit)


@pytest.mark.parametrize("dtype", [np.float16, np.int64])
def test_another_type_of_numbers_is_refused(model, dtype):
    with pytest.raises(ArgumentError, match=f"all float32 or all float64, got {dtype.__name__}"):
        model.astype(dtype)


def test_a_cache_of_another_batch_or_another_model_is_refused(model):
    with pytest.raises(ArgumentError, match="ids are 5 sequences, the cache holds 1"):
        model(IDS, model.new_cache(1))
    more_heads = {"n_head": 2 * SMALL.n_head, "n_embd": 2 * SMALL.n_embd}  # of the same width
    for sizes in ({"n_layer": 3}, {"n_embd": 2 * SMALL.n_embd}, more_heads):
        other = random_model(replace(SMALL, **sizes))
        with pytest.raises(ArgumentError, match="the cache was made for another model"):
            model(IDS, other.new_cache(B))


@pytest.mark.parametrize("seed", [-1, 0.5, None])
def test_what_is_not_a_seed_is_refused(model, seed):
    message = "seed must be a whole number of at least 0, got"
    with pytest.raises(ArgumentError, match=message):
        GPT2.random(SMALL, seed)
    with pytest.raises(ArgumentError, match=message):
        model.untie("random", seed)


@pytest.mark.parametrize(("capacity", "room"), [(0, 0), (6, 6), (N + 9, N)])
def test_a_full_cache_is_refused(model, capacity, room):
    """It is full at its capacity, and at the model's context if its capacity is larger."""
    cache = model.new_cache(capacity=capacity)
    for ids in np.zeros((room, 1), int):
        model(ids, cache=cache)
    message = f"the cache has {room} tokens, 1 more are given, there is room for {room}$"
    with pytest.raises(ArgumentError, match=message):
        model([1], cache=cache)
    if room == 0:
        return
    cache.length = room - 1
    message = f"the cache has {room - 1} tokens, 2 more are given, there is room for {room}$"
    with pytest.raises(ArgumentError, match=message):
        model([1, 2], cache=cache)


def test_tied_can_be_read_and_not_set(model):
    assert model.tied is True
    assert model.untie().tied is False
    with pytest.raises(AttributeError):
        model.tied = False


def test_a_tape_has_the_axis_of_the_batch_for_one_sequence_too(model):
    tape = {}
    shapes = []
    edit = {"final": lambda x: shapes.append(x.shape) or x}
    logits = model(IDS[0], tape=tape, edit=edit)
    assert logits.shape == (T, V)
    assert shapes == [(1, T, D)]
    np.testing.assert_array_equal(tape["logits"], logits[None])


def test_of_several_missing_parameters_the_first_of_the_table_is_named(model):
    names = list(parameter_shapes(SMALL))
    parameters = {name: model.parameters[name] for name in names[:3]}
    assert names[3] == "h.0.ln_1.bias"
    with pytest.raises(ArgumentError, match=r"parameter h\.0\.ln_1\.bias is missing"):
        GPT2(SMALL, parameters)


def test_the_model_that_refuses_a_parameter_is_named():
    message = r"'h\.1\.ln_1\.bias' is not one of an untied GPT-2's of 1 layer$"
    config = replace(SMALL, n_layer=1, tied=False)
    parameters = {name: np.zeros(shape) for name, shape in parameter_shapes(config).items()}
    with pytest.raises(ArgumentError, match=message):
        GPT2(config, {**parameters, "h.1.ln_1.bias": np.zeros(D)})


def test_parameters_are_put_into_the_order_of_the_table(model):
    shuffled = dict(reversed(model.parameters.items()))
    assert list(GPT2(SMALL, shuffled).parameters) == list(parameter_shapes(SMALL))


@pytest.mark.parametrize("name", activation_shapes(SMALL))
def test_every_activation_can_be_replaced_by_that_of_another_text(model, name):
    """The other text is IDS in reverse order."""
    clean_logits = model(IDS)
    other_tape = {}
    model(IDS[:, ::-1], tape=other_tape)
    patched_tape = {}
    patched_logits = model(IDS, tape=patched_tape, edit={name: lambda x: other_tape[name]})
    assert np.abs(patched_logits - clean_logits).max() > 1e-3
    np.testing.assert_array_equal(patched_tape[name], other_tape[name])


@pytest.mark.parametrize("name", activation_shapes(SMALL))
def test_an_edit_that_returns_the_same_values_changes_no_logit(model, name):
    tape = {}
    clean_logits = model(IDS, tape=tape)
    edit = MappingProxyType({name: lambda x: tape[name]})  # any mapping
    patched_logits = model(IDS, edit=edit)
    np.testing.assert_array_equal(patched_logits, clean_logits)


def test_an_edit_counts_for_all_tokens_of_a_text_that_is_read_in_pieces(model, monkeypatch):
    def reverse(activation):
        return activation[:, ::-1]

    expected = model(IDS, edit={"mlp.0.out": reverse})
    monkeypatch.setattr(prefill, "PIECE_TOKENS", 2)
    np.testing.assert_array_equal(model(IDS, edit={"mlp.0.out": reverse}), expected)


def test_an_edit_cannot_change_what_the_tape_recorded(model):
    """Without the edit, resid_pre.1 is the same array as resid_post.0."""

    def set_to_zeros(activation):
        activation[...] = 0
        return activation

    tape = {}
    model(IDS, tape=tape, edit={"resid_pre.1": set_to_zeros})
    assert tape["resid_post.0"].any()
    assert not tape["resid_pre.1"].any()


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.uint8, bool])
def test_an_edit_may_return_numbers_of_another_type(model, dtype):
    def to_zeros_and_ones(activation):
        return (activation > 0).astype(dtype)

    logits = model(IDS, edit={"final": to_zeros_and_ones})
    assert logits.dtype == model.dtype
    expected = (model.final(IDS) > 0).astype(np.float32) @ model.W_U
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


def test_a_cache_of_one_sequence_is_repeated_for_a_batch(model):
    prompt = IDS[0, :4]
    cache = model.new_cache()
    model(prompt, cache)
    cache.repeat(3)
    after = IDS[:3, 4:6]
    expected = model(np.hstack([[prompt] * 3, after]))[:, 4:]
    np.testing.assert_allclose(model(after, cache), expected, rtol=1e-4, atol=1e-5)


def test_logits_that_are_not_numbers_are_refused():
    logits = np.zeros((2, 3))
    assert check_logits(logits) is logits
    for value in (math.nan, math.inf):
        logits[1, 2] = value
        with pytest.raises(TiedGPTError, match="not finite numbers: its checkpoint is damaged"):
            check_logits(logits)


def test_progress_counts_each_token_once(model, monkeypatch):
    """A text that is read in pieces, and one with a tape, which is not."""
    monkeypatch.setattr(prefill, "PIECE_TOKENS", 5)
    for tape, pieces in [(None, [5, 5, 3]), ({}, [13])]:
        done = []
        model.final(IDS, tape=tape, progress=done.append)
        assert done == pieces


def test_a_batch_of_short_texts_is_divided_among_threads(model, monkeypatch):
    """Two threads need 2 * 32 tokens. The batch has 65, and each of its texts has 13."""
    monkeypatch.setattr(threads, "reading_threads", lambda: 2)
    monkeypatch.setattr(threads, "MIN_TOKENS", 32)
    for ids, pieces in [(IDS, [7, 6]), (IDS[0], [13])]:
        done = []
        model.final(ids, progress=done.append)
        assert done == pieces


def test_ctrl_c_in_a_piece_ends_the_others(model, monkeypatch):
    monkeypatch.setattr(prefill, "PIECE_TOKENS", 2)
    monkeypatch.setattr(threads, "reading_threads", lambda: 3)
    monkeypatch.setattr(threads, "MIN_TOKENS", 1)

    def interrupt(count):
        raise KeyboardInterrupt

    run = Run(model.config)
    with pytest.raises(KeyboardInterrupt):
        prefill.in_pieces(transformer, IDS, nest(model.parameters), run, interrupt)

    begun = []
    cancelled = []

    def wait_for_the_end(ids, tree, run):
        """The first piece ends when two others have begun. These wait until they are cancelled."""
        piece = run.cache
        if piece.offset == 0:
            wait_until(lambda: len(begun) >= 2, seconds=9)
        else:
            begun.append(piece.offset)
            wait_until(lambda: piece.cancelled, seconds=2)
            cancelled.append(piece.offset)
        return np.zeros((*ids.shape, D))

    with pytest.raises(KeyboardInterrupt):
        prefill.in_pieces(wait_for_the_end, IDS, nest(model.parameters), run, interrupt)
    assert sorted(cancelled) == sorted(begun)


def test_a_piece_that_waits_for_a_cancelled_one_stops(model):
    """It neither waits for ever, nor reads keys and values that are not there."""
    cache = model.new_cache()
    first = prefill.CachePiece(cache, 0, None)
    second = prefill.CachePiece(cache, 2, first)
    H, K = SMALL.n_head, SMALL.n_embd // SMALL.n_head
    keys = np.zeros((1, H, 2, K), np.float32)
    prefill.cancel_all([first, second])
    for piece in (first, second):
        with pytest.raises(RuntimeError, match="cancelled"):
            piece.extend(0, keys, keys)


def test_no_edits_change_nothing(model):
    np.testing.assert_array_equal(model(IDS, edit={}), model(IDS))
