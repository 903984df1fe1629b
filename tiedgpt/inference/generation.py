"""Sampling: read the prompt once, then choose one token after another."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np

from ..errors import Range
from ..gpt2.checks import check_prompt_ids, seed_or_new
from ..gpt2.model import GPT2, unembed
from ..gpt2.run import KVCache, OnProgress
from .drafts import MOST_GUESSES, Draft, Guesser
from .sampling import Sampling

Record = Callable[
    [int, np.ndarray, int], Any
]  # (number of a row, its logits [V], the chosen token)


@dataclass
class Row:
    """One sample of a batch: its tokens, and how the next ones are guessed and chosen."""

    tokens: list[int]
    left: int  # tokens to choose
    sampling: Sampling
    stream: np.random.Generator
    draft: Draft | None
    guesser: Guesser | None
    record: Callable[[np.ndarray, int], Any] | None
    guesses: list[int] = field(default_factory=list)

    def next_ids(self, room: int) -> list[int]:
        """The ids to read next, at most `room`: the last token, which has not been read, and
        guesses."""
        most = max(min(room, self.left, MOST_GUESSES + 1) - 1, 0)
        self.guesses = self.guesser.guess(self.tokens, most) if self.guesser else []
        return [self.tokens[-1], *self.guesses]

    def choose(self, logits: np.ndarray) -> list[int]:  # [1 + guesses, V] -> ids
        """Choose the next tokens, up to the first one that was not guessed; none if none are
        left."""
        chosen: list[int] = []
        for guess, position in zip(
            [*self.guesses, None] if self.left else [], logits, strict=False
        ):
            chosen.append(self.sampling.choose(position, self.stream))
            if self.record:
                self.record(position, chosen[-1])
            if chosen[-1] != guess:
                break
        if chosen and self.draft and self.guesser:
            self.guesser.learn(chosen)
            self.draft.drafted += len(self.guesses)
            self.draft.accepted += len(chosen) - 1
        self.tokens += chosen
        self.left -= len(chosen)
        return chosen


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
    B, n_ctx = len(prompts), model.config.n_ctx
    rows = []
    for number, (prompt, stream) in enumerate(zip(prompts, streams, strict=True)):
        guesser = draft.guesser(sampling, stream, B) if draft else None
        record_row = record and partial(record, number)
        rows.append(Row(list(prompt), max_new_tokens, sampling, stream, draft, guesser, record_row))
    # The guesses of a row are read for all rows, also beyond the end of a complete one.
    capacity = max(map(len, prompts)) + max_new_tokens + (MOST_GUESSES if draft else 0)
    cache, logits = read_prompts(model, prompts, min(n_ctx, capacity), progress)
    while True:
        chosen = [row.choose(of_row) for row, of_row in zip(rows, logits, strict=True)]
        yield chosen
        if not any(row.left for row in rows):
            return
        # A token is read just before the next one is chosen, so the last one is never read.
        unused = [logits.shape[1] - len(ids) for ids in chosen]  # wrong guesses and padding
        cache.length = cache.length - (unused[0] if len(set(unused)) == 1 else np.array(unused))
        if np.any(cache.length == n_ctx):
            slide(model, cache, [row.tokens for row in rows])
        room = cache.capacity - int(np.max(cache.length))
        ids = [row.next_ids(room) for row in rows]
        logits = unembed(model.final(padded(ids), cache), model.W_U)


def padded(rows: Sequence[Sequence[int] | np.ndarray]) -> np.ndarray:  # [B][T] -> [B, longest T]
    """The ids of all rows, with zeros after those of shorter rows."""
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for row, of_row in zip(ids, rows, strict=True):
        row[: len(of_row)] = of_row
    return ids


def read_prompts(
    model: GPT2, prompts: list[list[int]], capacity: int, progress: OnProgress
) -> tuple[KVCache, np.ndarray]:  # logits [B, 1, V]
    """A cache with the prompts, and the logits of the token after each. Equal prompts are read
    once."""
    B, equal = len(prompts), all(prompt == prompts[0] for prompt in prompts)
    ids, lengths = padded(prompts[:1] if equal else prompts), np.array([*map(len, prompts)])
    cache = read = model.new_cache(len(ids), capacity)
    final = model.final(ids, read, lengths=None if equal else lengths, progress=progress)
    last = final[np.arange(len(ids)), lengths[: len(ids)] - 1]  # of each prompt
    logits = unembed(last, model.W_U)[:, None]
    if len(ids) < B:
        cache, logits = model.new_cache(B, capacity), logits.repeat(B, axis=0)
        cache.copy_rows(slice(None), read)
        cache.length = read.length
    return cache, logits


def slide(model: GPT2, cache: KVCache, texts: list[list[int]]) -> None:
    """For rows whose cache is full, cache the last half of their text only, without the last
    token."""
    n_ctx = model.config.n_ctx
    rows = np.flatnonzero(np.broadcast_to(cache.length, len(texts)) == n_ctx)
    kept = max(1, n_ctx // 2) - 1
    if kept:
        window = model.new_cache(len(rows), kept)
        model.final([texts[row][-kept - 1 : -1] for row in rows], window)
        cache.copy_rows(rows, window)
    cache.length = (
        kept if len(rows) == len(texts) else np.where(cache.length == n_ctx, kept, cache.length)
    )


def random_streams(seed: int, n: int) -> list[np.random.Generator]:
    """The random streams of n samples. Stream i does not depend on n."""
    return [np.random.default_rng([seed, i]) for i in range(n)]


def generate(
    model: GPT2,
    ids: Any,
    max_new_tokens: int = 40,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    greedy: bool = False,
    draft: GPT2 | str | None = "lookup",
) -> Iterator[int]:
    """The tokens that follow `ids` [T], one at a time, until max_new_tokens or the end-of-text
    token.

    The end-of-text token (config.eos_token_ids) is not returned. `draft` is for speed: "lookup" or
    a smaller model guesses tokens, and the model checks them (drafts.py). It changes tokens by
    rounding only. The other arguments are those of Sampling; seed None draws a new seed. Raises
    ArgumentError at once, before the first token, for a value that is not allowed, an id outside
    the vocabulary, and a prompt that is empty or longer than the context.
    """
    sampling = Sampling(temperature, top_k, top_p, greedy)
    prompt = check_prompt_ids(ids, model.config)
    count, streams = (
        Range(1).check("max_new_tokens", max_new_tokens),
        random_streams(seed_or_new(seed), 1),
    )
    guesses = None if draft is None else Draft(draft, model)
    steps = sample_steps(model, [prompt], count, sampling, streams, guesses)
    tokens = (token for (chosen,) in steps for token in chosen)
    return takewhile(lambda token: token not in model.config.eos_token_ids, tokens)
