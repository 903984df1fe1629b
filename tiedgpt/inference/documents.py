"""Score or continue many documents. An iterable goes in; an iterator comes out, in the same order.

    for result in score_documents(model, tokenizer, texts):
        ...  # a Score, or the error of this document
    for result in generate_documents(model, tokenizer, prompts, seed=1):
        ...  # a list of samples, or the error of this document

Short documents are read in batches of similar length, padded on the right. Attention is causal, so
padding changes no other token; the losses of padding are not computed. A batch's products are
summed in another order than one document's, which changes a loss by rounding: at most 5e-5 a token
in float32, 1e-12 in float64. Equal calls give equal bits. Sample i of document n draws from its own
random stream, default_rng([seed, n, i]).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from ..errors import COUNT, ArgumentError, Range, TiedGPTError, short_repr
from ..evaluation import Score, measure_rows, predicted_places, row_losses, score_of, token_losses
from ..generation import padded, sample_steps
from ..gpt2.checks import as_array, check_prompt_ids, check_text_ids, seed_or_new, stride_or_default
from ..gpt2.config import Config
from ..gpt2.model import GPT2
from ..gpt2.tokenizer import Tokenizer
from ..sampling import Sampling
from .prompts import kept_tokens
from .text import TextSample, push_steps

SHORT = 128  # tokens: longer documents are as fast one at a time as in a batch
# Tokens of short documents that are read together. 256 to 512 are fastest, for small models and for
# 124M.
BATCH_TOKENS = 384
CACHE_TOKENS = 4096  # in the cache of a batch of samples: 300 MB for GPT-2 124M
CACHE_ROWS = 32  # samples in a batch

Text = str | Sequence[int] | np.ndarray


@dataclass(frozen=True)
class Encoder:
    """How documents become ids. Raises ArgumentError for a wrong `special` or `on_long`."""

    tokenizer: Tokenizer
    config: Config  # of the model that reads the ids
    special: str
    on_long: str

    def __post_init__(self) -> None:
        if self.on_long not in ("error", "cut"):
            raise ArgumentError(f'on_long must be "error" or "cut", got {short_repr(self.on_long)}')
        self.tokenizer.encode("", self.special)  # this call only checks `special`

    def text_ids(self, text: Text, max_tokens: int | None) -> np.ndarray:  # -> [N]
        """The ids of a text to score. With on_long="cut" they are the first `max_tokens`."""
        ids = self.encode(text)
        if self.on_long == "cut" and ids.ndim > 0:  # a number cannot be cut; it is refused below
            ids = ids[:max_tokens]
        if max_tokens is not None and ids.size > max_tokens:
            raise ArgumentError(
                f"the text has {ids.size} tokens, more than the limit of {max_tokens}"
            )
        ids = check_text_ids(ids, self.config)
        self.check_tokens(ids)
        return ids

    def prompt_ids(self, prompt: Text, kept: int) -> np.ndarray:  # -> [T]
        """The ids of a prompt to continue. With on_long="cut" they are the last `kept`."""
        ids = self.encode(prompt)
        if self.on_long == "cut" and ids.ndim > 0:  # a number cannot be cut; it is refused below
            ids = ids[-kept:]
        ids = np.array(check_prompt_ids(ids, self.config))  # from a list
        self.check_tokens(ids)
        return ids

    def encode(self, text: Text) -> np.ndarray:
        """The ids of a document, which may be ids already. They are not checked."""
        if isinstance(text, str):
            text = self.tokenizer.encode(text, self.special)
        return as_array(text)

    def check_tokens(self, ids: np.ndarray) -> None:
        """Raise TokenizerError for an id that the tokenizer does not have.

        A model may have more rows than its tokenizer has tokens.
        """
        self.tokenizer.decode_bytes(np.unique(ids).tolist())


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
    stride = stride_or_default(stride, model.config)
    if max_tokens is not None:
        max_tokens = Range(2).check("max_tokens", max_tokens)
    check_several(texts)
    encoder = Encoder(tokenizer, model.config, special, on_long)
    lookahead = Range(1).check("lookahead", lookahead)
    return score_in_chunks(model, encoder, texts, stride, max_tokens, lookahead)


def score_in_chunks(
    model: GPT2,
    encoder: Encoder,
    texts: Iterable[Text],
    stride: int,
    max_tokens: int | None,
    lookahead: int,
) -> Iterator[Score | TiedGPTError]:
    """The results of score_documents, for `lookahead` texts at a time."""
    n_ctx = model.config.n_ctx
    for chunk in numbered_chunks(texts, lookahead):
        documents: dict[int, np.ndarray] = {}
        errors: dict[int, TiedGPTError] = {}
        for number, text in chunk:
            try:
                documents[number] = encoder.text_ids(text, max_tokens)
            except TiedGPTError as error:
                errors[number] = error

        losses_of_short = short_document_losses(model, documents)
        for number, _ in chunk:
            if number in errors:
                yield errors[number]
                continue
            ids = documents[number]
            if number in losses_of_short:
                losses = losses_of_short[number]
            else:
                losses = token_losses(model, ids, stride)
            predicted = ids[predicted_places(len(ids), n_ctx, stride)]
            yield score_of(losses, encoder.tokenizer, predicted)


def generate_documents(  # noqa: PLR0913  (public, with a default for most)
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
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
) -> Iterator[list[TextSample] | TiedGPTError]:
    """`num_samples` samples that continue each prompt (a str, or its token ids), or its error.

    The first prompt is document number `first`. A prompt longer than the context is an error. With
    on_long="cut", the beginning of a prompt is dropped if the context has no room for the prompt
    and `max_new_tokens` more tokens; at least n_ctx // 2 tokens are kept. The other arguments are
    those of `generate` and score_documents. Raises ArgumentError at once for one that is not
    allowed.
    """
    sampling = Sampling(temperature, top_k, top_p, greedy, min_p, repetition_penalty)
    seed = seed_or_new(seed)
    max_new_tokens = Range(1).check("max_new_tokens", max_new_tokens)
    num_samples = Range(1).check("num_samples", num_samples)
    first = COUNT.check("first", first)
    if isinstance(stop, str) or not all(isinstance(text, str) and text for text in stop):
        raise ArgumentError(
            f"stop must be a list of texts that are not empty, got {short_repr(stop)}"
        )
    settings = GenerationSettings(max_new_tokens, sampling, seed, num_samples, list(stop))
    check_several(prompts)
    encoder = Encoder(tokenizer, model.config, special, on_long)
    lookahead = Range(1).check("lookahead", lookahead)
    return generate_in_chunks(model, encoder, prompts, settings, first, lookahead)


@dataclass(frozen=True)
class GenerationSettings:
    """How many samples continue each document, and how."""

    max_new_tokens: int
    sampling: Sampling
    seed: int
    num_samples: int  # for each document
    stop: list[str]


def generate_in_chunks(
    model: GPT2,
    encoder: Encoder,
    prompts: Iterable[Text],
    settings: GenerationSettings,
    first: int,
    lookahead: int,
) -> Iterator[list[TextSample] | TiedGPTError]:
    """The results of generate_documents, for `lookahead` prompts at a time."""
    kept = kept_tokens(model.config.n_ctx, settings.max_new_tokens)
    for chunk in numbered_chunks(prompts, lookahead, first):
        documents: dict[int, np.ndarray] = {}
        errors: dict[int, TiedGPTError] = {}
        for number, prompt in chunk:
            try:
                documents[number] = encoder.prompt_ids(prompt, kept)
            except TiedGPTError as error:
                errors[number] = error

        samples = document_samples(model, encoder.tokenizer, documents, settings)
        for number, _ in chunk:
            if number in errors:
                yield errors[number]
            else:
                yield samples[number]


def check_several(texts: Iterable[Text]) -> None:
    """Raise ArgumentError if the documents are one text, which is an iterable of characters too."""
    if isinstance(texts, (str, bytes)):
        raise ArgumentError("expected an iterable of texts, got one text: put it in a list")


def numbered_chunks(
    texts: Iterable[Text], size: int, first: int = 0
) -> Iterator[list[tuple[int, Text]]]:
    """Yield lists of up to `size` documents, each with its number; the first has number `first`.

    >>> list(numbered_chunks(["a", "b", "c"], size=2))
    [[(0, 'a'), (1, 'b')], [(2, 'c')]]
    """
    numbered = enumerate(map(own_copy, texts), first)
    while chunk := list(islice(numbered, size)):
        yield chunk


def own_copy(text: Text) -> Text:
    """A copy of a document's ids, whose memory the caller may use for the next document.

    What is no array of ids is returned as it is: `encode` raises the document's error later.
    """
    if isinstance(text, str):
        return text
    try:
        return np.array(as_array(text))
    except TiedGPTError:
        return text


def batches(lengths: dict[int, int], tokens: int, rows: int) -> Iterator[list[int]]:
    """Yield lists of document numbers, of similar length, from {number: length}.

    A list has up to `rows` documents, and up to `tokens` tokens with the padding. A document longer
    than `tokens` is alone.

    >>> list(batches({0: 5, 1: 2, 2: 9, 3: 2}, tokens=6, rows=9))
    [[1, 3], [0], [2]]
    """
    batch: list[int] = []
    for number in sorted(lengths, key=lambda number: lengths[number]):
        # This document is the longest one so far, so it decides the length of the whole batch.
        padded_tokens = (len(batch) + 1) * lengths[number]
        if batch and (len(batch) == rows or padded_tokens > tokens):
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def short_document_losses(model: GPT2, documents: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """The losses of the documents of fewer than SHORT tokens that fit into the context.

    Both dicts have the numbers of the documents as keys; longer documents are left out.
    """
    lengths = {}
    for number, ids in documents.items():
        if len(ids) < SHORT and len(ids) <= model.config.n_ctx:
            lengths[number] = len(ids) - 1  # the last token predicts none, so it is not read

    losses: dict[int, np.ndarray] = {}
    # A row has at least one token, so the limit of tokens is also the limit of rows.
    for batch in batches(lengths, tokens=BATCH_TOKENS, rows=BATCH_TOKENS):
        losses_of_batch = batch_losses(model, [documents[number] for number in batch])
        losses.update(zip(batch, losses_of_batch, strict=True))
    return losses


def batch_losses(model: GPT2, documents: list[np.ndarray]) -> list[np.ndarray]:
    """For each document, the losses of all tokens but its first. All must fit into the context."""
    inputs = [ids[:-1] for ids in documents]
    lengths = [len(ids) for ids in inputs]
    final = model.final(padded(inputs), lengths=np.array(lengths))  # [B, T, D]

    # The documents stand one after another in one array of N rows, without padding.
    rows = np.concatenate([final[i, :length] for i, length in enumerate(lengths)])  # [N, D]
    targets = np.concatenate([ids[1:] for ids in documents])  # [N]
    pieces = measure_rows(model, rows, targets, row_losses)
    losses = np.concatenate(pieces, dtype=np.float64)  # [N]
    ends = np.cumsum(lengths)
    return np.split(losses, ends[:-1])


def document_samples(
    model: GPT2,
    tokenizer: Tokenizer,
    documents: dict[int, np.ndarray],
    settings: GenerationSettings,
) -> dict[int, list[TextSample]]:
    """The samples that continue each document, by its number.

    Sample i of document n draws from its own stream, default_rng([seed, n, i]).
    """
    config = model.config
    cached_tokens = {}  # how many tokens of all samples of a document the cache will hold
    samples = {}
    for number, ids in documents.items():
        longest = min(len(ids) + settings.max_new_tokens, config.n_ctx)
        cached_tokens[number] = settings.num_samples * longest
        samples[number] = [
            TextSample(tokenizer, settings.stop, config.eos_token_ids)
            for _ in range(settings.num_samples)
        ]

    # Each sample is a row of the model's batch. All samples of a document are in one batch.
    most_documents = max(1, CACHE_ROWS // settings.num_samples)
    for batch in batches(cached_tokens, tokens=CACHE_TOKENS, rows=most_documents):
        prompts = []
        streams = []
        samples_of_batch = []
        for number in batch:
            for index, sample in enumerate(samples[number]):
                prompts.append(documents[number].tolist())
                streams.append(np.random.default_rng([settings.seed, number, index]))
                samples_of_batch.append(sample)
        steps = sample_steps(model, prompts, settings.max_new_tokens, settings.sampling, streams)
        for _ in push_steps(steps, samples_of_batch):
            pass  # the new text is needed only when the samples are complete
    return samples
