"""The same logits however texts are read: alone, in a batch, padded, with a cache, by threads.

Each case draws the sizes of a model and of its texts from its seed. The expected logits after a
token come from a pass of their own, over this text up to this token, so nothing can be seen that
comes later.
"""

from dataclasses import replace

import numpy as np
import pytest
from support.models import SMALL, random_model

from tiedgpt import threads
from tiedgpt.gpt2 import prefill


def random_case(rng):
    """A model in float64, and ids [B, T] that fit its context."""
    n_head = int(rng.integers(1, 4))
    config = replace(
        SMALL,
        tied=bool(rng.integers(2)),
        vocab_size=int(rng.integers(1, 60)),
        n_ctx=int(rng.integers(1, 40)),
        n_layer=int(rng.integers(0, 4)),
        n_head=n_head,
        n_embd=n_head * int(rng.integers(1, 8)),
        n_inner=int(rng.integers(1, 50)),
        scale_attn_by_inverse_layer_idx=bool(rng.integers(2)),
    )
    B = rng.integers(1, 5)
    T = rng.integers(1, config.n_ctx + 1)
    ids = rng.integers(0, config.vocab_size, (B, T))
    return random_model(config, dtype=np.float64), ids


@pytest.mark.parametrize(
    "seed",
    [*range(15), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(15, 40))],
)
def test_logits_do_not_depend_on_how_texts_are_read(monkeypatch, seed):
    rng = np.random.default_rng(seed)
    model, ids = random_case(rng)
    B, T = ids.shape
    # With a tape, a text is read in one pass and not in pieces.
    expected = np.stack(
        [[model(row[: end + 1], tape={})[-1] for end in range(T)] for row in ids]
    )  # [B, T, V]

    def assert_expected(logits, B=B, T=T):
        np.testing.assert_allclose(logits[:B, :T], expected[:B, :T], rtol=1e-9, atol=1e-9)

    assert_expected(model(ids, tape={}))

    # Several threads, each with several pieces, and several blocks of queries in a piece
    monkeypatch.setattr(threads, "reading_threads", lambda: int(rng.integers(1, 4)))
    monkeypatch.setattr(threads, "MIN_TOKENS", 1)
    monkeypatch.setattr(prefill, "PIECE_TOKENS", int(rng.integers(1, T + 1)))
    assert_expected(model(ids))

    # The texts are padded on the right with other tokens.
    padded = ids.copy()
    lengths = rng.integers(1, T + 1, B)
    for row, length in enumerate(lengths):
        padded[row, length:] = rng.integers(0, model.config.vocab_size, T - length)
    for logits, row, length in zip(model(padded), expected, lengths, strict=True):
        np.testing.assert_allclose(logits[:length], row[:length], rtol=1e-9, atol=1e-9)

    # A cache, to which one call after another adds tokens
    n_cuts = int(rng.integers(0, T))
    cuts = sorted(rng.choice(np.arange(1, T), n_cuts, replace=False).tolist())
    cache = model.new_cache(B, capacity=T)
    cache.keys[...] = np.nan  # which would be in the logits if it were read before it is written
    cache.values[...] = np.nan
    calls = [model(part, cache) for part in np.split(ids, cuts, axis=1)]
    assert cache.length == T
    assert_expected(np.concatenate(calls, axis=1))
