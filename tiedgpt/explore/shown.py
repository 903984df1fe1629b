"""The models that the page shows, and what they have computed for it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

import numpy as np

from ..gpt2.model import GPT2, unembed
from ..gpt2.run import Tape
from ..gpt2.tokenizer import Tokenizer
from ..study import predictions
from ..study.corpus import Corpus
from ..threads import one_blas_thread

ATTENTION_TOKENS = 32  # the most tokens of a prompt that a tape has
FEW_TOKENS = 4  # of a prompt for which BLAS has all its threads
SHAKESPEARE_PROMPTS = (
    "ROMEO:\nMy lord, I will not",
    "to be, or not to be",
    "What say you, my lord?",
    "I have been a man of",
)
OTHER_PROMPTS = (
    "New York City is in New York",
    "Alan Turing theorized that computers would one day become",
    "The capital of France is Paris. The capital of Italy is",
    "In the United States of America, the United States",
)


class ShownModels:
    """One or two models with their names, their tokenizer, and a named corpus to compare with.

    `by_head` has each model with the heads that it can use, its own first. A tied one has no W_U.
    """

    def __init__(
        self,
        named_models: Sequence[tuple[str, GPT2]],
        tokenizer: Tokenizer,
        named_corpus: tuple[str, Corpus] | None = None,
    ) -> None:
        self.names = [name for name, _ in named_models]
        self.models = [model for _, model in named_models]
        self.by_head = []
        for model in self.models:
            self.by_head.append({model.config.head: model, "tied": model.tie()})
        self.tokenizer = tokenizer
        self.corpus_name: str | None = None
        self.corpus: Corpus | None = None
        if named_corpus is not None:
            self.corpus_name, self.corpus = named_corpus

        # GPT-2's vocabulary has a token for a name such as " York", and can predict it. The small
        # vocabulary of the Shakespeare models splits the name.
        york_tokens = tokenizer.encode(" York")
        self.prompts = OTHER_PROMPTS if len(york_tokens) == 1 else SHAKESPEARE_PROMPTS

        # The page asks for these again and again while the reader changes one thing. A tape takes
        # much memory, so few are kept.
        self._tape = lru_cache(maxsize=4)(self._read_tape)
        self._logits = lru_cache(maxsize=32)(self._read_logits)

    def tape(self, side: int, ids: list[int]) -> Tape:
        """The activations of a prompt's last tokens. They do not depend on the head."""
        return self._tape(side, tuple(ids))

    def logits(self, side: int, head: str, ids: list[int]) -> np.ndarray:  # -> [V]
        """The logits of the token after a prompt."""
        return self._logits(side, head, tuple(ids))

    def _read_tape(self, side: int, ids: tuple[int, ...]) -> Tape:
        with blas_threads_for(ids):
            tape = predictions.last_tape(self.models[side], list(ids), ATTENTION_TOKENS)

        # A pattern has a column for each token of the prompt. The copy has the last columns only,
        # and the memory of the whole pattern is freed.
        for name in tape:
            if "pattern" in name:
                tape[name] = tape[name][..., -ATTENTION_TOKENS:].copy()
        return tape

    def _read_logits(self, side: int, head: str, ids: tuple[int, ...]) -> np.ndarray:  # -> [V]
        final = self._tape(side, ids)["final"][0, -1]  # [D]
        return unembed(final, self.by_head[side][head].W_U)


def blas_threads_for(ids: Sequence[int]) -> AbstractContextManager[None]:
    """One BLAS thread for a long prompt: two wait for each other when the cores are busy."""
    if len(ids) > FEW_TOKENS:
        return one_blas_thread()
    return nullcontext()
