"""The models that the page shows, and what they have computed for it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

import numpy as np

from ..fast.blas import one_blas_thread
from ..gpt2.model import GPT2, unembed
from ..gpt2.run import OnProgress, Tape
from ..gpt2.tokenizer import Tokenizer
from ..study import predictions
from ..study.bigrams import Scores
from ..study.corpus import Corpus

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

Result = TypeVar("Result")


class ResultCache(Generic[Result]):
    """The newest results of a computation. The oldest goes when there are more than `size`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._results: dict[Any, Result] = {}

    def __len__(self) -> int:
        return len(self._results)

    def get_or_compute(self, key: Any, compute: Callable[[], Result]) -> Result:
        """The result with this key. If there is none, it is what `compute` returns."""
        if key not in self._results:
            self._results[key] = compute()
        if len(self._results) > self.size:
            oldest = next(iter(self._results))  # a dict is in the order of insertion
            del self._results[oldest]
        return self._results[key]


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
        self.by_head = [models_by_head(model) for model in self.models]
        self.tokenizer = tokenizer
        self.corpus_name: str | None = None
        self.corpus: Corpus | None = None
        if named_corpus is not None:
            self.corpus_name, self.corpus = named_corpus

        # GPT-2's vocabulary has a token for a name such as " York", and can predict it. The small
        # vocabulary of the Shakespeare models splits the name.
        york_tokens = tokenizer.encode(" York")
        if len(york_tokens) == 1:
            self.prompts = OTHER_PROMPTS
        else:
            self.prompts = SHAKESPEARE_PROMPTS

        # The views ask for these again and again while the reader changes one thing. A tape takes
        # much memory, so few are kept. The other results are small.
        self.tapes = ResultCache[Tape](size=4)
        self.last_logits = ResultCache[np.ndarray](size=32)
        self.symmetries = ResultCache[dict[str, float]](size=32)
        self.solutions = ResultCache[dict[str, Scores]](size=8)

    def tape(self, model: GPT2, ids: list[int], progress: OnProgress) -> Tape:
        """The activations of a prompt's last tokens.

        They do not depend on the head, so a model with either head has the same tape.
        """
        W_E_id, _ = matrix_ids(model)
        key = (W_E_id, *ids)
        return self.tapes.get_or_compute(key, lambda: read_tape(model, ids, progress))

    def logits(  # -> [V]
        self, model: GPT2, ids: list[int], progress: OnProgress
    ) -> np.ndarray:
        """The logits of the token after a prompt."""
        final = self.tape(model, ids, progress)["final"][0, -1]  # [D]
        key = (*matrix_ids(model), *ids)
        return self.last_logits.get_or_compute(key, lambda: unembed(final, model.W_U))


def models_by_head(model: GPT2) -> dict[str, GPT2]:
    """The model with each head that it can use, its own first."""
    models = {model.config.head: model}
    models["tied"] = model.tie()
    return models


def matrix_ids(model: GPT2) -> tuple[int, int]:
    """Numbers that are equal for models with the same W_E, and with the same W_U."""
    W_U = model.parameters.get("lm_head.weight", model.W_E)  # a tied model has W_E only
    return id(model.W_E), id(W_U)


def read_tape(model: GPT2, ids: list[int], progress: OnProgress) -> Tape:
    """The activations of a prompt's last tokens, with the attention between these only."""
    with blas_threads_for(ids):
        tape = predictions.last_tape(model, ids, ATTENTION_TOKENS, progress)

    # A pattern has a column for each token of the prompt. The copy has the last columns only, and
    # the memory of the whole pattern is freed.
    for name in tape:
        if "pattern" in name:
            tape[name] = tape[name][..., -ATTENTION_TOKENS:].copy()
    return tape


def blas_threads_for(ids: list[int]) -> AbstractContextManager[None]:
    """One BLAS thread for a long prompt: two wait for each other when the cores are busy."""
    if len(ids) > FEW_TOKENS:
        return one_blas_thread()
    return nullcontext()
