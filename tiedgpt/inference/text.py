"""Text that grows: samples of generated tokens as text that can be printed at once."""

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..generation import Record, random_streams, sample_steps
from ..gpt2.model import GPT2
from ..gpt2.run import OnProgress
from ..gpt2.tokenizer import Tokenizer
from ..sampling import Sampling
from .drafts import Draft


@dataclass(kw_only=True)
class TextGeneration:
    """Samples of text by which a model continues one prompt.

    `steps` generates them. `samples` holds what they are so far, and `draft` counts the guesses.
    Sample i depends on the seed and i, and not on the number of samples.
    """

    model: GPT2
    tokenizer: Tokenizer
    prompt_ids: list[int]
    max_new_tokens: int
    sampling: Sampling
    seed: int
    num_samples: int = 1
    stop: Sequence[str] = ()
    draft: Draft | None = None  # a new one for each generation, because it counts

    def __post_init__(self) -> None:
        self.samples: list[TextSample] = []
        for _ in range(self.num_samples):
            sample = TextSample(self.tokenizer, self.stop, self.model.config.eos_token_ids)
            self.samples.append(sample)

    def steps(
        self, progress: OnProgress = None, record: Record | None = None
    ) -> Iterator[tuple[int, str]]:
        """Read the prompt, then add a token to one sample after another, until all are complete.

        Yields (index of a sample, its new text) after each token, and once more for a sample that
        ends because it has `max_new_tokens`. `progress` is called with the length of each piece of
        the prompt that is read, `record` with each token that is drawn (see sample_steps).
        """
        steps = sample_steps(
            self.model,
            prompts=[self.prompt_ids] * self.num_samples,
            max_new_tokens=self.max_new_tokens,
            sampling=self.sampling,
            streams=random_streams(self.seed, self.num_samples),
            draft=self.draft,
            progress=progress,
            record=record,
        )
        return push_steps(steps, self.samples)


class TextSample:
    """One sample as text that can be printed while it grows.

    Text that may be the beginning of a stop string, or of a character whose last bytes are missing,
    is held back until the next tokens decide. `ids` and `text` are the continuation, without the
    end-of-text token. After a stop string, `text` ends before it; `ids` includes the token that
    completed it.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str], eos_token_ids: tuple[int, ...]
    ) -> None:
        self.ids: list[int] = []
        self.text = ""
        self.finish_reason: str | None = None  # "length", "stop" or "eos"; None while it grows
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = stop
        self._eos_token_ids = eos_token_ids
        self._held = ""  # the end of the text, if it may be the beginning of a stop string

    def push(self, token: int) -> str:
        """Add a token; return the text that can be printed now."""
        if token in self._eos_token_ids:
            return self.finish("eos")
        self.ids.append(token)
        if token >= self._tokenizer.vocab_size:  # a row that pads the vocabulary and has no text
            return self._emit(self._decoder.decode(b"", final=True) + "\ufffd")
        return self._emit(self._decoder.decode(self._tokenizer.token_bytes(token)))

    def finish(self, reason: str) -> str:
        """End the sample for this reason; return the text that was held back.

        If the last bytes complete a stop string, the reason is "stop".
        """
        emitted = self._emit(self._decoder.decode(b"", final=True))
        if self.finish_reason is None:  # `_emit` found no stop string
            self.finish_reason = reason
            emitted += self._held
            self.text += self._held
        return emitted

    def _emit(self, new: str) -> str:
        """Append new text up to the first stop string; return what need not be held back."""
        pending = self._held + new
        stops_at = [pending.find(stop) for stop in self._stop if stop in pending]
        if stops_at:
            self.finish_reason = "stop"
            end = min(stops_at)
        else:
            # The end of the text is held back if a stop string may begin there.
            overlaps = [overlap(pending, stop) for stop in self._stop]
            end = len(pending) - max(overlaps, default=0)
        emitted = pending[:end]
        self._held = pending[end:]
        self.text += emitted
        return emitted


def overlap(text: str, stop: str) -> int:
    """The length of the longest suffix of `text` that is a prefix of `stop`, but not all of it.

    >>> overlap("to be or n", "not"), overlap("to be", "not")
    (1, 0)
    """
    longest = min(len(text), len(stop) - 1)
    for length in range(longest, 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


def push_steps(
    steps: Iterator[list[list[int]]], samples: list[TextSample]
) -> Iterator[tuple[int, str]]:
    """Add the tokens of `sample_steps` to the samples; yield (index of a sample, its new text).

    A complete sample stays as it is: the tokens that are drawn for it later are discarded.
    """
    for tokens_of_samples in steps:
        for index, tokens in enumerate(tokens_of_samples):
            sample = samples[index]
            for token in tokens:
                if sample.finish_reason is None:
                    yield index, sample.push(token)
        if all(sample.finish_reason for sample in samples):
            return

    for index, sample in enumerate(samples):
        if sample.finish_reason is None:
            yield index, sample.finish("length")
