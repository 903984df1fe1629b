"""Score or continue many documents. An iterable goes in; an iterator comes out, in the same order.

    for result in score_documents(model, tokenizer, texts):   # a Score, or the error of this document
    for result in generate_documents(model, tokenizer, prompts, seed=1):   # a list of samples, or the error

Short documents are read in batches of similar length, padded on the right. Attention is causal, so
padding changes no other token; the losses of padding are not computed. A batch's products are
summed in another order than one document's, which changes a loss by rounding: at most 5e-5 a token
in float32, 1e-12 in float64. Equal calls give equal bits. Sample i of document n draws from its own
random stream, default_rng([seed, n, i]).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from sys import maxsize
from typing import Any, TypeVar

import numpy as np

from ..errors import COUNT, ArgumentError, Range, TiedGPTError, short_repr
from ..gpt2.checks import as_array, check_prompt_ids, check_text_ids, seed_or_new, stride_or_default
from ..gpt2.model import GPT2
from ..gpt2.ops import cross_entropy
from ..gpt2.tokenizer import Tokenizer
from .evaluation import Score, measure_rows, predicted_places, score_of, token_losses
from .generation import padded, sample_steps
from .prompts import kept_tokens
from .sampling import Sampling
from .text import TextSample, push_steps

SHORT = 128  # tokens: from this length on, a batch is no faster than one document at a time
BATCH_TOKENS = (
    384  # of short documents that are read together: 256 to 512 are fastest, small models and 124M
)
CACHE_TOKENS = 4096  # in the cache of a batch of samples: 300 MB for GPT-2 124M
CACHE_ROWS = 32  # samples in a batch

Text = str | Sequence[int] | np.ndarray
Result = TypeVar("Result")


def score_documents(
    model: GPT2,
    tokenizer: Tokenizer,
    texts: Iterable[Text],
    stride: int | None = None,
    *,
    max_tokens: int | None = None,
    on_long: str = "error",
    special: str = "error",
    lookahead: int = 256,
) -> Iterator[Score | TiedGPTError]:
    """The score of each text (a str, or its token ids), or the error that it causes.

    Documents of at least SHORT tokens, or longer than the context, are scored as `score` does, with
    the same bits. A document of more than `max_tokens` tokens is an error; with on_long="cut" its
    first `max_tokens` are scored. `special` is Tokenizer.encode's. Up to `lookahead` documents are
    held in memory.

    Raises ArgumentError at once for an argument that is not allowed, and TiedGPTError for a loss
    that is nan: then the checkpoint is damaged, not the document.
    """
    config, stride = model.config, stride_or_default(stride, model.config)
    limit = maxsize if max_tokens is None else Range(2).check("max_tokens", max_tokens)

    def check(ids: np.ndarray) -> np.ndarray:
        if ids.size > limit:
            raise ArgumentError(f"the text has {ids.size} tokens, more than the limit of {limit}")
        return check_text_ids(ids, config)

    def scores(documents: dict[int, np.ndarray]) -> Iterator[Score]:
        short = min(SHORT, config.n_ctx + 1)
        losses: dict[int, np.ndarray] = {}
        lengths = {n: len(ids) - 1 for n, ids in documents.items() if len(ids) < short}
        for batch in batches(lengths, BATCH_TOKENS, BATCH_TOKENS):
            losses.update(
                zip(batch, batch_losses(model, [documents[n] for n in batch]), strict=True)
            )
        for n, ids in documents.items():
            predicted = ids[predicted_places(len(ids), config.n_ctx, stride)]
            of_document = losses[n] if n in losses else token_losses(model, ids, stride)
            yield score_of(of_document, tokenizer, predicted)

    return results(tokenizer, texts, special, on_long, slice(limit), lookahead, check, scores)


def generate_documents(
    model: GPT2,
    tokenizer: Tokenizer,
    prompts: Iterable[Text],
    max_new_tokens: int = 40,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    greedy: bool = False,
    *,
    num_samples: int = 1,
    stop: Sequence[str] = (),
    on_long: str = "error",
    special: str = "error",
    first: int = 0,
    lookahead: int = 256,
) -> Iterator[list[TextSample] | TiedGPTError]:
    """`num_samples` samples that continue each prompt (a str, or its token ids), or the error that
    it causes.

    The first prompt is document number `first`. A prompt longer than the context is an error. With
    on_long="cut", the beginning of a prompt is dropped if the context has no room for the prompt
    and `max_new_tokens` more tokens; at least n_ctx // 2 tokens are kept. The other arguments are
    those of `generate` and score_documents. Raises ArgumentError at once for one that is not
    allowed.
    """
    config, sampling = model.config, Sampling(temperature, top_k, top_p, greedy)
    seed, new = seed_or_new(seed), Range(1).check("max_new_tokens", max_new_tokens)
    num_samples, first = Range(1).check("num_samples", num_samples), COUNT.check("first", first)
    if isinstance(stop, str) or not all(isinstance(text, str) and text for text in stop):
        raise ArgumentError(
            f"stop must be a list of texts that are not empty, got {short_repr(stop)}"
        )

    def samples(documents: dict[int, np.ndarray]) -> Iterator[list[TextSample]]:
        lengths = {
            n: num_samples * min(len(ids) + new, config.n_ctx) for n, ids in documents.items()
        }
        new_sample = partial(TextSample, tokenizer, list(stop), config.eos_token_ids)
        done = {n: [new_sample() for _ in range(num_samples)] for n in documents}
        for batch in batches(lengths, CACHE_TOKENS, max(1, CACHE_ROWS // num_samples)):
            rows = [(n, i) for n in batch for i in range(num_samples)]
            ids = [documents[n].tolist() for n, _ in rows]
            streams = [np.random.default_rng([seed, first + n, i]) for n, i in rows]
            steps = sample_steps(model, ids, new, sampling, streams)
            for _ in push_steps(steps, [done[n][i] for n, i in rows]):
                pass
        yield from done.values()

    keep, check = (
        slice(-kept_tokens(config.n_ctx, new), None),
        partial(check_prompt_ids, config=config),
    )
    return results(tokenizer, prompts, special, on_long, keep, lookahead, check, samples)


def results(
    tokenizer: Tokenizer,
    texts: Iterable[Text],
    special: str,
    on_long: str,
    keep: slice,  # of a text's ids, with on_long="cut"
    lookahead: int,
    check: Callable[[Any], Any],
    work: Callable[[dict[int, np.ndarray]], Iterator[Result]],
) -> Iterator[Result | TiedGPTError]:
    """The results of work({number: check(ids)}), for `lookahead` texts at a time; an error in its
    place."""
    if isinstance(texts, (str, bytes)):
        raise ArgumentError("expected an iterable of texts, got one text: put it in a list")
    if on_long not in ("error", "cut"):
        raise ArgumentError(f'on_long must be "error" or "cut", got {short_repr(on_long)}')
    tokenizer.encode("", special)  # raises for a wrong `special`
    Range(1).check("lookahead", lookahead)

    def of_windows() -> Iterator[Result | TiedGPTError]:
        numbered = enumerate(texts)
        while window := list(islice(numbered, lookahead)):
            documents: dict[int, np.ndarray] = {}
            errors: dict[int, TiedGPTError] = {}
            for n, text in window:
                try:
                    ids = as_array(
                        tokenizer.encode(text, special) if isinstance(text, str) else text
                    )
                    ids = np.array(check(ids[keep] if on_long == "cut" and ids.ndim else ids))
                    tokenizer.decode_bytes(
                        np.unique(ids).tolist()
                    )  # raises for an id that it does not have
                    documents[n] = ids
                except TiedGPTError as error:
                    errors[n] = error
            worked = work(documents)
            for n, _ in window:
                yield errors[n] if n in errors else next(worked)

    return of_windows()


def batches(lengths: dict[int, int], tokens: int, rows: int) -> Iterator[list[int]]:
    """Group documents {number: length} by length, up to `rows` each, and `tokens` with padding.

    >>> list(batches({0: 5, 1: 2, 2: 9, 3: 2}, tokens=6, rows=9))
    [[1, 3], [0], [2]]
    """
    batch: list[int] = []
    for n in sorted(lengths, key=lambda n: lengths[n]):
        if batch and (len(batch) == rows or (len(batch) + 1) * lengths[n] > tokens):
            yield batch
            batch = []
        batch.append(n)
    if batch:
        yield batch


def batch_losses(model: GPT2, documents: list[np.ndarray]) -> list[np.ndarray]:
    """The loss of each token but the first of documents that fit into the context."""
    lengths = np.array(
        [len(ids) - 1 for ids in documents]
    )  # the last token predicts none, so it is not read
    final = model.final(padded([ids[:-1] for ids in documents]), lengths=lengths)  # [B, T, D]
    final = final[np.arange(lengths.max()) < lengths[:, None]]
    targets = np.concatenate([ids[1:] for ids in documents])
    losses = np.concatenate(measure_rows(model, final, targets, cross_entropy), dtype=np.float64)
    return np.split(losses, np.cumsum(lengths)[:-1])
