"""Sampling: read the prompt once, then choose one token after another."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import Range
from .gpt2.checks import check_prompt_ids, seed_or_new
from .gpt2.model import GPT2, unembed
from .gpt2.run import KVCache, OnProgress
from .inference.drafts import MOST_GUESSES, Draft, Guesser
from .sampling import Sampling

# Called for each chosen token, with the number of its row, the logits [V] and the token.
Record = Callable[[int, np.ndarray, int], Any]


def sample_steps(
    model: GPT2,
    prompts: list[list[int]],
    max_new_tokens: int,
    sampling: Sampling,
    streams: list[np.random.Generator],
    draft: Draft | None = None,
    progress: OnProgress = None,
    record: Record | None = None,
) -> Iterator[list[list[int]]]:
    """Yield the next tokens of each prompt [B][T], until each has max_new_tokens.

    Each step yields B lists of ids. A list has one id, and with a draft (drafts.py) one more for
    each right guess. It is empty after max_new_tokens. `record` is called with each chosen token.

    The prompts are one batch and may have unequal lengths. Equal prompts are read once (`progress`
    is called with the length of each piece read). Each row draws from its own random stream, so it
    does not depend on the other rows or on the draft, up to rounding: the products of many rows are
    summed in another order than those of one row, which changes a logit in its seventh digit and
    about 1 sampled token in 10,000.

    When the context is full, the later half of the tokens is kept and read again from position 0,
    because GPT-2's positions are absolute and cached keys are valid for their position only. So in
    a text longer than n_ctx, each new token is predicted from the last n_ctx / 2 to n_ctx tokens.
    """
    if draft is None:
        for tokens in sample_tokens(
            model,
            prompts,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            streams=streams,
            progress=progress,
            record=record,
        ):
            yield [[token] for token in tokens]
    else:
        yield from sample_guessed(
            model,
            prompts,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            streams=streams,
            draft=draft,
            progress=progress,
            record=record,
        )


def sample_tokens(
    model: GPT2,
    prompts: list[list[int]],
    max_new_tokens: int,
    sampling: Sampling,
    streams: list[np.random.Generator],
    progress: OnProgress = None,
    record: Record | None = None,
) -> Iterator[list[int]]:
    """Yield the next token of each prompt [B], max_new_tokens times."""
    n_ctx = model.config.n_ctx
    texts = [list(prompt) for prompt in prompts]
    longest = max(len(prompt) for prompt in prompts)
    capacity = min(n_ctx, longest + max_new_tokens)
    cache, logits = read_prompts(model, prompts, capacity, progress)  # logits [B, V]

    for step in range(max_new_tokens):
        # A token is read just before the next one is chosen, so the last one is never read.
        if step > 0:
            if np.any(cache.length == n_ctx):
                slide(model, cache, texts)
            newest = [[text[-1]] for text in texts]  # [B, 1]
            final = model.final(newest, cache)  # [B, 1, D]
            logits = unembed(final[:, 0], model.W_U)

        tokens = []
        for row, (text, stream) in enumerate(zip(texts, streams, strict=True)):
            token = sampling.choose(logits[row], stream, text)
            if record is not None:
                record(row, logits[row], token)
            text.append(token)
            tokens.append(token)
        yield tokens


@dataclass
class GuessedRow:
    """One sample of a batch whose next tokens are guessed."""

    text: list[int]  # the prompt and the tokens chosen so far
    tokens_left: int  # how many tokens are still to be chosen
    stream: np.random.Generator
    guesser: Guesser
    guesses: list[int] = field(default_factory=list)  # those that the model has just read

    def next_ids(self, room: int) -> list[int]:
        """The ids to read next, at most `room`: the newest token of the text, then guesses."""
        if self.tokens_left == 0:
            # The sample is complete. It must read an id all the same, because the other rows of the
            # batch do. The id's logits are not used.
            return [self.text[-1]]
        # The newest token takes one place of the room. A step chooses one token more than its right
        # guesses, so tokens_left - 1 guesses are enough.
        most_guesses = min(room - 1, self.tokens_left - 1, MOST_GUESSES)
        self.guesses = self.guesser.guess(self.text, most_guesses)
        return [self.text[-1], *self.guesses]

    def choose(self, logits: np.ndarray, sampling: Sampling) -> list[int]:  # [1 + guesses, V]
        """Choose tokens from the logits of the ids that were read; [] if the sample is complete.

        The text gets the tokens, and the guesser learns from them.
        """
        if self.tokens_left == 0:
            return []
        tokens = choose_tokens(logits, self.guesses, sampling, self.stream, self.text)
        self.guesser.learn(tokens)
        self.text += tokens
        self.tokens_left -= len(tokens)
        return tokens


def sample_guessed(
    model: GPT2,
    prompts: list[list[int]],
    max_new_tokens: int,
    sampling: Sampling,
    streams: list[np.random.Generator],
    draft: Draft,
    progress: OnProgress = None,
    record: Record | None = None,
) -> Iterator[list[list[int]]]:
    """Yield the next tokens of each prompt [B][T], until each has max_new_tokens.

    The lists of a step have one token, and one more for each right guess. After max_new_tokens they
    are empty.
    """
    rows = []
    for prompt, stream in zip(prompts, streams, strict=True):
        guesser = draft.guesser(sampling, stream, len(prompts))
        rows.append(GuessedRow(list(prompt), max_new_tokens, stream, guesser))

    # A step reads equally many ids of all rows, with padding. So a row that is complete, or nearly
    # so, reads up to MOST_GUESSES ids more than it needs, and the cache must hold them.
    longest = max(len(prompt) for prompt in prompts)
    capacity = min(model.config.n_ctx, longest + max_new_tokens + MOST_GUESSES)
    cache, logits_of_prompts = read_prompts(model, prompts, capacity, progress)  # [B, V]
    logits = logits_of_prompts[:, None]  # [B, 1 + guesses, V], here without guesses

    while True:
        chosen: list[list[int]] = []
        for number, row in enumerate(rows):
            tokens = row.choose(logits[number], sampling)
            if len(tokens) > 0:
                draft.drafted += len(row.guesses)
                draft.accepted += len(tokens) - 1  # the last token was not guessed
            if record is not None:
                for position, token in enumerate(tokens):
                    record(number, logits[number, position], token)
            chosen.append(tokens)
        yield chosen
        if all(row.tokens_left == 0 for row in rows):
            return

        # A row read `ids_read` ids: the newest token, then guesses, then padding. The newest token
        # and the right guesses stay in its cache. They are as many as the tokens that the row then
        # chose. (A complete row chose none, and none stays. After the prompts, both are 1.)
        ids_read = logits.shape[1]
        wrong_counts = [ids_read - len(tokens) for tokens in chosen]
        cache.drop_last(wrong_counts)
        logits = read_guesses(model, cache, rows)


def read_guesses(  # -> [B, 1 + guesses, V]
    model: GPT2, cache: KVCache, rows: list[GuessedRow]
) -> np.ndarray:
    """Guess the next tokens of each row. Read its newest token and its guesses, with padding."""
    if np.any(cache.length == model.config.n_ctx):
        slide(model, cache, [row.text for row in rows])
    room = cache.capacity - int(np.max(cache.length))
    ids = padded([row.next_ids(room) for row in rows])  # [B, 1 + guesses]
    return unembed(model.final(ids, cache), model.W_U)


def choose_tokens(  # [1 + guesses, V] -> ids
    logits: np.ndarray,
    guesses: list[int],
    sampling: Sampling,
    stream: np.random.Generator,
    text: list[int],
) -> list[int]:
    """Choose the token after the text, and one more after each right guess.

    Row i of the logits is for the token that follows the text and i guesses.
    """
    tokens: list[int] = []
    for position, guess in enumerate(guesses):
        token = sampling.choose(logits[position], stream, [*text, *tokens])
        tokens.append(token)
        if token != guess:
            return tokens
    # All guesses are right: the logits after the last one give a token that was not guessed.
    tokens.append(sampling.choose(logits[len(guesses)], stream, [*text, *tokens]))
    return tokens


def read_prompts(
    model: GPT2, prompts: list[list[int]], capacity: int, progress: OnProgress
) -> tuple[KVCache, np.ndarray]:
    """A cache with the prompts [B][T], and the logits [B, V] of the token after each.

    capacity: how many tokens of each row the cache can hold.
    """
    if all(prompt == prompts[0] for prompt in prompts):
        return read_one_prompt(model, prompts[0], len(prompts), capacity, progress)
    cache = model.new_cache(len(prompts), capacity)
    lengths = np.array([len(prompt) for prompt in prompts])
    final = model.final(padded(prompts), cache, lengths=lengths, progress=progress)  # [B, T, D]
    last_tokens = final[np.arange(len(prompts)), lengths - 1]  # [B, D]
    return cache, unembed(last_tokens, model.W_U)


def read_one_prompt(
    model: GPT2, prompt: list[int], copies: int, capacity: int, progress: OnProgress
) -> tuple[KVCache, np.ndarray]:
    """As read_prompts, for equal prompts: read one, and copy its keys and values."""
    cache = model.new_cache(1, capacity)
    final = model.final([prompt], cache, progress=progress)  # [1, T, D]
    logits = unembed(final[:, -1], model.W_U)  # [1, V]
    if copies == 1:
        return cache, logits
    copied = model.new_cache(copies, capacity)
    copied.copy_rows(slice(None), cache)  # the one row of `cache`, to all rows
    copied.length = cache.length
    return copied, logits.repeat(copies, axis=0)


def slide(model: GPT2, cache: KVCache, texts: list[list[int]]) -> None:
    """For each text whose cache is full, cache only the last half of its tokens again.

    Their positions then count from 0. The newest token of a text is not cached: the next step reads
    it.
    """
    n_ctx = model.config.n_ctx
    kept_tokens = max(1, n_ctx // 2)
    cached_tokens = kept_tokens - 1
    lengths = np.broadcast_to(cache.length, len(texts))  # cache.length may be one for all
    is_full = lengths == n_ctx
    full_rows = np.flatnonzero(is_full)
    if cached_tokens > 0:
        new_cache = model.new_cache(len(full_rows), cached_tokens)
        model.final([texts[row][-kept_tokens:-1] for row in full_rows], new_cache)
        cache.copy_rows(full_rows, new_cache)
    if is_full.all():
        cache.length = cached_tokens  # still one for all, which is faster to use
    else:
        cache.length = np.where(is_full, cached_tokens, lengths)


def padded(rows: Sequence[Sequence[int] | np.ndarray]) -> np.ndarray:  # [B][T] -> [B, longest T]
    """The ids of all rows, with zeros after those of shorter rows."""
    longest = max(len(row) for row in rows)
    ids = np.zeros((len(rows), longest), np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
    return ids


def random_streams(seed: int, n: int) -> list[np.random.Generator]:
    """The random streams of n samples. Stream i does not depend on n."""
    return [np.random.default_rng([seed, i]) for i in range(n)]


def generate(  # noqa: PLR0913  (public, with a default for most)
    model: GPT2,
    ids: Any,
    max_new_tokens: int = 40,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    greedy: bool = False,
    draft: GPT2 | str | None = "lookup",
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
) -> Iterator[int]:
    """Yield the tokens that follow `ids` [T], up to max_new_tokens or the end-of-text token.

    The end-of-text token (config.eos_token_ids) is not returned. `draft` is for speed: "lookup" or
    a smaller model guesses tokens, and the model checks them (drafts.py). It changes tokens by
    rounding only. The other arguments are those of Sampling; seed None draws a new seed. Raises
    ArgumentError at once, before the first token, for a value that is not allowed, an id outside
    the vocabulary, and a prompt that is empty or longer than the context.
    """
    sampling = Sampling(temperature, top_k, top_p, greedy, min_p, repetition_penalty)
    prompt = check_prompt_ids(ids, model.config)
    max_new_tokens = Range(1).check("max_new_tokens", max_new_tokens)
    streams = random_streams(seed_or_new(seed), 1)
    guesses = None if draft is None else Draft(draft, model)
    steps = sample_steps(model, [prompt], max_new_tokens, sampling, streams, draft=guesses)
    return tokens_until_end(steps, model.config.eos_token_ids)


def tokens_until_end(
    steps: Iterator[list[list[int]]], eos_token_ids: tuple[int, ...]
) -> Iterator[int]:
    """The tokens of `sample_steps` of one prompt, one at a time, up to an end-of-text token."""
    for (tokens,) in steps:
        for token in tokens:
            if token in eos_token_ids:
                return
            yield token
