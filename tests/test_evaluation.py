"""Scores against brute force: one full forward pass for every predicted token, in float64.

A long text is read in windows, which are as long as the context. Each window begins `stride` tokens
after the previous window. A token is predicted in the first window that holds it, unless it is the
first token of that window: it follows nothing there.
"""

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from support.models import SMALL, SMALL_MERGES, random_model

from tiedgpt import GPT2, Tokenizer, evaluation, threads
from tiedgpt.errors import ArgumentError, TiedGPTError
from tiedgpt.evaluation import score, score_of, token_losses
from tiedgpt.gpt2.config import HEADS

CONTEXT = SMALL.n_ctx


def some_ids(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(SMALL.vocab_size, size=n)


# The loss of each token


def first_window_with(place: int, stride: int) -> int:
    """The start of the first window that holds a place of the text."""
    start = 0
    while start + CONTEXT <= place:
        start += stride
    return start


def brute_force(model: GPT2, ids: np.ndarray, stride: int) -> list[float]:
    """Each token's loss in the first window that holds it, unless the window begins with it."""
    losses = []
    for place, target in enumerate(ids):
        start = first_window_with(place, stride)
        if start < place:
            logits = model(ids[start:place])[-1]
            log_sum = math.log(sum(math.exp(logit) for logit in logits))
            losses.append(log_sum - logits[target])
    return losses


STRIDES = [1, 2, CONTEXT // 2, CONTEXT - 1, CONTEXT]
LENGTHS = [2, CONTEXT, CONTEXT + 1, 2 * CONTEXT, 3 * CONTEXT + 2]
CASES = []
for head, n, stride in itertools.product(HEADS, LENGTHS, STRIDES):
    is_sample = head == "tied" and (n == CONTEXT + 1 or (n > CONTEXT and stride == CONTEXT // 2))
    CASES.append(pytest.param(head, n, stride, marks=[] if is_sample else pytest.mark.slow))


@pytest.mark.parametrize(("head", "n", "stride"), CASES)
def test_each_token_is_predicted_as_by_brute_force(head, n, stride):
    model = random_model(SMALL.with_head(head), dtype=np.float64)
    ids = some_ids(n)
    losses = token_losses(model, ids, stride)
    np.testing.assert_allclose(losses, brute_force(model, ids, stride), rtol=1e-11)


@pytest.mark.parametrize("n", LENGTHS)
def test_how_many_tokens_are_predicted(model, n):
    """The first token of the text is not predicted.

    The first token of a later window is predicted, in the previous window, if the windows overlap.
    """
    ids = some_ids(n)
    assert token_losses(model, ids, stride=1).size == n - 1
    assert token_losses(model, ids, stride=CONTEXT - 1).size == n - 1
    windows_without_overlap = math.ceil(n / CONTEXT)
    assert token_losses(model, ids, stride=CONTEXT).size == n - windows_without_overlap


@pytest.mark.parametrize("stride", [1, CONTEXT // 2, CONTEXT])
def test_progress_counts_the_tokens_that_are_read(model, stride):
    n = 3 * CONTEXT + 2
    counts_reported = []
    token_losses(model, some_ids(n), stride, progress=counts_reported.append)
    assert sum(counts_reported) == n
    assert len(counts_reported) > 1
    assert min(counts_reported) > 0


def test_progress_of_a_text_of_one_window(model):
    counts_reported = []
    token_losses(model, some_ids(CONTEXT), stride=1, progress=counts_reported.append)
    assert counts_reported == [CONTEXT]


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        (1, 10_000),
        (2 * CONTEXT, 7),
        (10_000, 1),
        pytest.param(1, 1, marks=pytest.mark.slow),
        pytest.param(1, 7, marks=pytest.mark.slow),
        pytest.param(2 * CONTEXT, 1, marks=pytest.mark.slow),
        pytest.param(2 * CONTEXT, 10_000, marks=pytest.mark.slow),
        pytest.param(10_000, 7, marks=pytest.mark.slow),
        pytest.param(10_000, 10_000, marks=pytest.mark.slow),
    ],
)
def test_batch_and_piece_sizes_do_not_change_losses(model, monkeypatch, batch, rows):
    ids = some_ids(500)
    expected = token_losses(model.astype(np.float64), ids, stride=10)
    monkeypatch.setattr(evaluation, "BATCH_TOKENS", batch)
    monkeypatch.setattr(evaluation, "LOGIT_ROWS", rows)
    losses = token_losses(model, ids, stride=10)
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
    model, monkeypatch, shapes_read, thread_count, pieces_of_batch
):
    """Of 2000 tokens, all but the first are predicted.

    Several windows are read in a batch. The tokens that a batch predicts are cut into as few pieces
    as possible, of at most LOGIT_ROWS = 256 tokens, with equally many pieces for each thread.
    `unembed` computes the logits of a piece.
    """
    ids = some_ids(2000)
    stride = CONTEXT - 1  # so that each window predicts all its tokens but the first
    expected = token_losses(model.astype(np.float64), ids, stride)
    unembed = evaluation.unembed
    piece_sizes = []

    def recorded(final, W_U):
        piece_sizes.append(len(final))
        return unembed(final, W_U)

    monkeypatch.setattr(threads, "reading_threads", lambda: thread_count)
    monkeypatch.setattr(evaluation, "unembed", recorded)
    shapes_read.clear()
    losses = token_losses(model, ids, stride)
    assert shapes_read == [(33, CONTEXT), (33, CONTEXT), (1, 2000 - 66 * stride)]
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert losses.size == 1999
    assert sum(piece_sizes) == 1999
    assert max(piece_sizes) <= evaluation.LOGIT_ROWS
    # The text has two batches of 33 windows, and a last window, which is one piece. A batch
    # predicts 33 * 30 = 990 tokens: 4 pieces, or 2 for each of 3 threads.
    assert len(piece_sizes) == 2 * pieces_of_batch + 1


@pytest.mark.parametrize(
    ("n_ctx", "sizes"),
    [(1024, [1, 1, 1, 1, 1]), (1025, [1, 1, 1, 1, 1]), (512, [2, 2, 1]), (511, [2, 2, 1])],
)
def test_windows_of_1024_tokens_together_are_read_at_once(n_ctx, sizes):
    """A longer one is read alone, and so is the last one, which may be shorter."""
    text_windows = evaluation.windows(5 * n_ctx, n_ctx, stride=n_ctx)
    batches = evaluation.window_batches(text_windows, n_ctx)
    assert [len(batch) for batch in batches] == sizes
    assert list(itertools.chain(*batches)) == text_windows


# Texts that cannot be scored

TOO_FEW = "^a score needs two tokens or more"
ONE_SEQUENCE = r"^the text must be one sequence of ids \[N\]"
NOT_A_TEXT = [
    pytest.param([], f"{TOO_FEW}, got 0: the first is not predicted$", id="empty"),
    pytest.param([5], f"{TOO_FEW}, got 1: the first is not predicted$", id="one-token"),
    pytest.param([[1, 2], [3, 4]], rf"{ONE_SEQUENCE}, got shape \(2, 2\)$", id="batch"),
    pytest.param(5, rf"{ONE_SEQUENCE}, got shape \(\)$", id="no-sequence"),
    pytest.param([1.0, 2.0], "whole numbers, got float64", id="not-whole"),
    pytest.param(
        [0] * 5000 + [101], "token id 101 is outside the vocabulary of 101", id="id-too-high"
    ),
    pytest.param([0, -1], "token id -1 is outside the vocabulary", id="id-below-0"),
    pytest.param([[1], [2, 3]], "ids must be", id="ragged"),
]


def assert_refused(model, ids, stride, message):
    """token_losses and score refuse the text or the stride, and token_losses reads no token."""

    def fail_because_tokens_were_read(_):
        pytest.fail("the text was read")

    with pytest.raises(ArgumentError, match=message):
        token_losses(model, ids, stride, progress=fail_because_tokens_were_read)
    with pytest.raises(ArgumentError, match=message):
        score(model, Tokenizer([]), ids, stride)


def test_a_text_is_scored_as_its_ids(model):
    tokenizer = Tokenizer([])
    text = "To-be,or-not-to-be"  # whose bytes are tokens of the small model
    ids = tokenizer.encode(text)
    counts_reported = []
    of_text = score(model, tokenizer, text, stride=8, progress=counts_reported.append)
    assert of_text == score(model, tokenizer, ids, stride=8)
    assert sum(counts_reported) == len(ids)
    with pytest.raises(TiedGPTError, match=r"special token"):
        score(model, tokenizer, "To<|endoftext|>")
    with pytest.raises(ArgumentError, match=r"^stride must be"):
        score(model, tokenizer, "To<|endoftext|>", stride=0)
    with pytest.raises(ArgumentError, match="two tokens or more, got 0"):
        score(model, tokenizer, "")


@pytest.mark.parametrize(("ids", "message"), NOT_A_TEXT)
def test_texts_that_cannot_be_scored(model, ids, message):
    assert_refused(model, ids, stride=8, message=message)


@pytest.mark.parametrize("stride", [0, -1, CONTEXT + 1, 1.5, True, "8"])
def test_strides_out_of_range(model, stride):
    numbers = "a whole number from 1 to the model's context of 31"
    message = f"^stride must be {numbers}, got {re.escape(repr(stride))}$"
    assert_refused(model, [1] * 50, stride, message)


def test_a_stride_is_an_int_of_at_least_1():
    assert evaluation.stride_or_default(None, replace(SMALL, n_ctx=1)) == 1
    assert type(evaluation.stride_or_default(np.int64(3), SMALL)) is int


def test_a_context_of_one_token_has_no_loss():
    message = "^the model's context is 1 token, so it predicts no token from another$"
    with pytest.raises(ArgumentError, match=message):
        token_losses(GPT2.random(replace(SMALL, n_ctx=1)), [1, 2], stride=1)
    assert token_losses(GPT2.random(replace(SMALL, n_ctx=2)), [1, 2, 3], stride=1).size == 2


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
        # The second window begins with TOKENS[4], which is not predicted.
        pytest.param(4, 4, TOKENS[1:4] + TOKENS[5:], id="windows-without-overlap"),
        # The second window is TOKENS[7] alone, which is not predicted.
        pytest.param(7, 7, TOKENS[1:7], id="last-window-of-one-token"),
    ],
)
def test_a_model_whose_W_U_is_0_scores_as_a_uniform_guess(n_ctx, stride, predicted):
    """Each of the V tokens has probability 1 / V, so each costs log(V) nats, or log2(V) bits."""
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
    bits_of_text = len(predicted) * math.log2(V)
    assert result.bits_per_byte == pytest.approx(bits_of_text / result.bytes, rel=1e-6)


def test_the_default_stride_is_half_the_context(model):
    tokenizer = Tokenizer([], {})
    ids = some_ids(200)
    default = score(model, tokenizer, ids)
    assert default == score(model, tokenizer, ids, stride=CONTEXT // 2)
    assert default != score(model, tokenizer, ids, stride=CONTEXT)


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


@pytest.mark.parametrize(
    ("loss", "mean"), [(np.nan, "nan"), (np.inf, "inf"), (3e5, "1e+05"), (3 * 700 - 3, "700")]
)
def test_one_loss_that_is_no_number_makes_no_score(loss, mean):
    """A row of wpe that is nan, in a model without layers, spoils one token alone.

    A mean of 700 nats or more is refused: soon after it, its exponential is no float any more.
    """
    losses = np.array([1.0, loss, 2.0])
    with pytest.raises(TiedGPTError) as caught:
        score_of(losses, Tokenizer([], {}), np.array([65, 66, 67]))
    expected = f"the loss is {mean} nats per token: the model's checkpoint is damaged"
    assert str(caught.value) == expected


def test_a_mean_below_700_nats_has_a_perplexity():
    losses = np.array([699.0, 699.5])
    assert score_of(losses, Tokenizer([], {}), np.array([65, 66])).perplexity == math.exp(699.25)


def test_logits_that_are_not_finite_are_named_before_any_loss(model):
    ln_f_weight = np.full(SMALL.n_embd, np.nan, np.float32)
    damaged = GPT2(SMALL, {**model.parameters, "ln_f.weight": ln_f_weight})
    with pytest.raises(TiedGPTError, match=r"logits are not finite numbers: .* damaged"):
        token_losses(damaged, some_ids(50), stride=CONTEXT)
