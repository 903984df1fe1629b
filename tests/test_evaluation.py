"""Scores against brute force: one full forward pass for every predicted token, in float64.

A long text is read in windows, which are as long as the context. Each begins `stride` tokens after
the one before. A token is predicted in the first window that holds it.
"""

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


# The loss of each token


def first_window_with(place: int, stride: int) -> int:
    """The start of the first window that holds a place of the text."""
    start = 0
    while start + C <= place:
        start += stride
    return start


def brute_force(model: GPT2, ids: np.ndarray, stride: int) -> list[float]:
    """Each token's loss in the first window that holds it, unless that window begins with it."""
    losses = []
    for place, target in enumerate(ids):
        start = first_window_with(place, stride)
        if start < place:
            logits = model(ids[start:place])[-1]
            log_sum = math.log(sum(math.exp(logit) for logit in logits))
            losses.append(log_sum - logits[target])
    return losses


@pytest.mark.parametrize("stride", [1, 2, C // 2, C - 1, C])
@pytest.mark.parametrize("n", [2, C, C + 1, 2 * C, 3 * C + 2])
@pytest.mark.parametrize("head", HEADS)
def test_each_token_is_predicted_as_by_brute_force(head, n, stride):
    model = random_model(SMALL.with_head(head), dtype=np.float64)
    ids = some_ids(n)
    losses = token_losses(model, ids, stride)
    np.testing.assert_allclose(losses, brute_force(model, ids, stride), rtol=1e-11)


@pytest.mark.parametrize("n", [2, C, C + 1, 2 * C, 3 * C + 2])
def test_one_token_is_not_predicted_or_one_of_each_window(model, n):
    """The first token of a window is predicted in the window before it, if they overlap."""
    ids = some_ids(n)
    assert token_losses(model, ids, 1).size == n - 1
    assert token_losses(model, ids, C - 1).size == n - 1
    windows = math.ceil(n / C)
    assert token_losses(model, ids, C).size == n - windows


@pytest.mark.parametrize("stride", [1, C // 2, C])
def test_progress_counts_the_tokens_that_are_read(model, stride):
    n = 3 * C + 2
    counts_reported = []
    token_losses(model, some_ids(n), stride, counts_reported.append)
    assert sum(counts_reported) == n
    assert len(counts_reported) > 1
    assert min(counts_reported) > 0


def test_progress_of_a_text_of_one_window(model):
    counts_reported = []
    token_losses(model, some_ids(C), 1, counts_reported.append)
    assert counts_reported == [C]


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


@pytest.mark.parametrize(
    ("thread_count", "pieces_of_batch"),
    [
        pytest.param(1, 4, id="one-thread"),
        pytest.param(2, 4, id="two-threads"),
        pytest.param(3, 6, id="three-threads"),
    ],
)
def test_logits_are_computed_for_predicted_tokens_only_in_pieces(
    model, monkeypatch, thread_count, pieces_of_batch
):
    """The first of 2,000 tokens is not predicted. unembed computes the logits of a piece."""
    ids = some_ids(2000)
    stride = C - 1  # so that each window predicts all its tokens but the first
    expected = token_losses(model.astype(np.float64), ids, stride)
    unembed = evaluation.unembed
    piece_sizes = []

    def recorded(final, W_U):
        piece_sizes.append(len(final))
        return unembed(final, W_U)

    monkeypatch.setattr(threads, "reading_threads", lambda: thread_count)
    monkeypatch.setattr(evaluation, "unembed", recorded)
    losses = token_losses(model, ids, stride)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert losses.size == 1999
    assert sum(piece_sizes) == 1999
    assert max(piece_sizes) <= evaluation.LOGIT_ROWS
    # Two batches of 33 windows are computed in pieces. The last window is a piece of its own.
    assert len(piece_sizes) == 2 * pieces_of_batch + 1


# Texts that cannot be scored

NOT_A_TEXT = [
    pytest.param([], "a score needs two tokens or more, got 0", id="empty"),
    pytest.param([5], "a score needs two tokens or more, got 1", id="one-token"),
    pytest.param([[1, 2], [3, 4]], r"one sequence of ids \[N\], got shape \(2, 2\)", id="batch"),
    pytest.param([1.0, 2.0], "whole numbers, got float64", id="not-whole"),
    pytest.param(
        [0] * 5000 + [101], "token id 101 is outside the vocabulary of 101", id="id-too-high"
    ),
    pytest.param([0, -1], "token id -1 is outside the vocabulary", id="id-below-0"),
    pytest.param([[1], [2, 3]], "ids must be", id="ragged"),
]


def assert_refused(model, ids, stride, message):
    """Both functions refuse the text, and read nothing of it."""

    def read_for_nothing(_):
        pytest.fail("the text was read")

    with pytest.raises(ArgumentError, match=message):
        token_losses(model, ids, stride, progress=read_for_nothing)
    with pytest.raises(ArgumentError, match=message):
        score(model, Tokenizer([]), ids, stride)


@pytest.mark.parametrize(("ids", "message"), NOT_A_TEXT)
def test_texts_that_cannot_be_scored(model, ids, message):
    assert_refused(model, ids, 8, message)


@pytest.mark.parametrize("stride", [0, -1, C + 1, 1.5, True, "8"])
def test_strides_out_of_range(model, stride):
    message = r"^stride must be a whole number from 1 to .* context of 31, got"
    assert_refused(model, [1] * 50, stride, message)


def test_a_context_of_one_token_has_no_loss():
    with pytest.raises(ArgumentError, match="context is 1 token"):
        token_losses(GPT2.random(replace(SMALL, n_ctx=1)), [1, 2], 1)


# The score of a text

TEXT = "low lower é<|endoftext|>low low"
TOKENS = ["low", " low", "er", " ", "é", "<|endoftext|>", "low", " low"]


@pytest.mark.parametrize(
    ("n_ctx", "stride", "predicted"),
    [
        pytest.param(20, None, TOKENS[1:], id="one-window"),
        pytest.param(20, 20, TOKENS[1:], id="one-window-as-long-as-the-stride"),
        pytest.param(4, None, TOKENS[1:], id="overlapping-windows"),
        pytest.param(4, 1, TOKENS[1:], id="stride-1"),
        # The last window begins with TOKENS[4], which follows nothing there.
        pytest.param(4, 4, TOKENS[1:4] + TOKENS[5:], id="windows-without-overlap"),
        # The last window is one token, which follows nothing there.
        pytest.param(7, 7, TOKENS[1:7], id="last-window-of-one-token"),
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
    bits = len(predicted) * math.log2(V)
    assert result.bits_per_byte == pytest.approx(bits / result.bytes, rel=1e-6)


def test_the_default_stride_is_half_the_context(model):
    tokenizer = Tokenizer([], {})
    ids = some_ids(200)
    default = score(model, tokenizer, ids)
    assert default == score(model, tokenizer, ids, C // 2)
    assert default != score(model, tokenizer, ids, C)


@pytest.mark.parametrize(
    "weight",
    [
        pytest.param(np.nan, id="logits-not-finite"),
        pytest.param(1e9, id="perplexity-beyond-all-floats"),
    ],
)
def test_a_loss_that_is_not_finite_or_too_large_is_an_error(model, weight):
    ln_f_weight = np.full(SMALL.n_embd, weight, np.float32)
    damaged = GPT2(SMALL, {**model.parameters, "ln_f.weight": ln_f_weight})
    with pytest.raises(TiedGPTError, match="checkpoint is damaged"):
        score(damaged, Tokenizer([], {}), some_ids(50))
