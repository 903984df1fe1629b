"""Scores against brute force: one full forward pass for every predicted token, in float64."""

import math
from dataclasses import replace

import numpy as np
import pytest
from support.models import SMALL, SMALL_MERGES, random_model

from tiedgpt import GPT2, Tokenizer
from tiedgpt.errors import ArgumentError, TiedGPTError
from tiedgpt.fast import threads
from tiedgpt.gpt2.config import HEADS
from tiedgpt.inference import evaluation
from tiedgpt.inference.evaluation import score, token_losses

C = SMALL.n_ctx


def some_ids(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(SMALL.vocab_size, size=n)


def brute_force(model: GPT2, ids: np.ndarray, stride: int) -> list[float]:
    """Each token's loss in the first window that holds it, unless that window begins with it."""
    losses = []
    for place, target in enumerate(ids):
        start = next(start for start in range(0, ids.size, stride) if start + C > place)
        if start < place:
            logits = model(ids[start:place])[-1]
            losses.append(math.log(sum(math.exp(x) for x in logits)) - logits[target])
    return losses


@pytest.mark.parametrize("stride", [1, 2, C // 2, C - 1, C])
@pytest.mark.parametrize("n", [2, C, C + 1, 2 * C, 3 * C + 2])
@pytest.mark.parametrize("head", HEADS)
def test_each_token_is_predicted_as_by_brute_force(head, n, stride):
    model = random_model(SMALL.with_head(head), dtype=np.float64)
    ids = some_ids(n)
    read = []
    losses = token_losses(model, ids, stride, read.append)
    np.testing.assert_allclose(losses, brute_force(model, ids, stride), rtol=1e-11)
    left_out = math.ceil(n / C) if stride == C else 1
    assert losses.size == n - left_out
    assert (sum(read), min(read) > 0, len(read) > 1) == (n, True, n > C)


@pytest.mark.parametrize("batch", [1, 2 * C, 10_000])
@pytest.mark.parametrize("rows", [1, 7, 10_000])
def test_batch_and_piece_sizes_do_not_change_losses(model, monkeypatch, batch, rows):
    ids = some_ids(500)
    expected = token_losses(model.astype(np.float64), ids, 10)
    monkeypatch.setattr(evaluation, "BATCH_TOKENS", batch)
    monkeypatch.setattr(evaluation, "LOGIT_ROWS", rows)
    losses = token_losses(model, ids, 10)
    assert losses.dtype == np.float64
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


@pytest.mark.parametrize(("n", "pieces"), [(1, 4), (2, 4), (3, 6)])
def test_logits_are_computed_for_predicted_tokens_only_in_pieces_on_n_threads(
    model, monkeypatch, n, pieces
):
    ids, rows, unembed = some_ids(2000), [], evaluation.unembed
    expected = token_losses(model.astype(np.float64), ids, C - 1)
    monkeypatch.setattr(threads, "reading_threads", lambda: n)
    monkeypatch.setattr(
        evaluation, "unembed", lambda x, W_U: rows.append(len(x)) or unembed(x, W_U)
    )
    losses = token_losses(model, ids, C - 1)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert losses.size == sum(rows) == 1999
    assert max(rows) <= evaluation.LOGIT_ROWS
    assert len(rows) == 2 * pieces + 1, (
        "no more than two batches of 33 windows and the last window need"
    )


STRIDE = r"^stride must be a whole number from 1 to .* context of 31, got"


@pytest.mark.parametrize(
    ("ids", "stride", "message"),
    [
        ([], 8, "a score needs two tokens or more, got 0"),
        ([5], 8, "a score needs two tokens or more, got 1"),
        ([[1, 2], [3, 4]], 8, r"one sequence of ids \[N\], got shape \(2, 2\)"),
        ([1.0, 2.0], 8, "whole numbers, got float64"),
        ([0] * 5000 + [101], 8, "token id 101 is outside the vocabulary of 101"),
        ([0, -1], 8, "token id -1 is outside the vocabulary"),
        ([[1], [2, 3]], 8, "ids must be"),
        *(([1] * 50, stride, STRIDE) for stride in (0, -1, C + 1, 1.5, True, "8")),
    ],
)
def test_texts_that_cannot_be_scored(model, ids, stride, message):
    """And before any of the text is read."""
    with pytest.raises(ArgumentError, match=message):
        token_losses(model, ids, stride, progress=lambda _: pytest.fail("read for nothing"))
    with pytest.raises(ArgumentError, match=message):
        score(model, Tokenizer([]), ids, stride)
    with pytest.raises(ArgumentError, match="context is 1 token"):
        token_losses(GPT2.random(replace(SMALL, n_ctx=1)), [1, 2], 1)


TEXT = "low lower é<|endoftext|>low low"
TOKENS = ["low", " low", "er", " ", "é", "<|endoftext|>", "low", " low"]


@pytest.mark.parametrize(
    ("n_ctx", "stride", "predicted"),
    [
        (20, None, TOKENS[1:]),
        (20, 20, TOKENS[1:]),
        (4, None, TOKENS[1:]),
        (4, 1, TOKENS[1:]),
        (4, 4, TOKENS[1:4] + TOKENS[5:]),
        (7, 7, TOKENS[1:7]),  # the last window is one token, which follows nothing there
    ],
)
def test_a_model_of_zeros_scores_as_guessing(n_ctx, stride, predicted):
    """W_U = 0: every token is one of V, and costs log2(V) bits."""
    tokenizer = Tokenizer(SMALL_MERGES)
    ids = tokenizer.encode(TEXT, special="token")
    assert [tokenizer.token_text(token) for token in ids] == TOKENS
    V = tokenizer.vocab_size
    model = GPT2.random(replace(SMALL, vocab_size=V, n_ctx=n_ctx)).untie("zeros")
    result = score(model, tokenizer, ids, stride)
    assert result.tokens == len(predicted)
    assert result.bytes == len("".join(predicted).encode())
    assert result.nll == pytest.approx(math.log(V), rel=1e-6)
    assert result.perplexity == pytest.approx(V, rel=1e-5)
    assert result.bits_per_byte == pytest.approx(
        len(predicted) * math.log2(V) / result.bytes, rel=1e-6
    )


def test_the_default_stride_is_half_the_context(model):
    default, half, whole = (
        score(model, Tokenizer([], {}), some_ids(200), n) for n in (None, C // 2, C)
    )
    assert default == half != whole


@pytest.mark.parametrize("value", [np.nan, 1e9])
def test_a_loss_that_is_not_finite_or_too_large_is_an_error(model, value):
    """nan, and a loss whose perplexity is beyond all floats."""
    parameters = {**model.parameters, "ln_f.weight": np.full(SMALL.n_embd, value, np.float32)}
    with pytest.raises(TiedGPTError, match="nats per token: the model's checkpoint is damaged"):
        score(GPT2(SMALL, parameters), Tokenizer([], {}), some_ids(50))
