"""All measurements of a model as one report, which is what `tiedgpt study --json` prints of it."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import TiedGPTError
from ..evaluation import token_losses
from ..gpt2.model import GPT2
from ..gpt2.parameters import parameter_count
from ..gpt2.run import OnProgress, OpenProgress
from .bigrams import Scores, bigrams
from .corpus import MIN_TOKENS, Corpus
from .direct_path import direct_path, jsd_floor
from .gradients import gradients
from .paths import paths_of
from .similarity import embeddings
from .solved import STEPS, missing, solved_paths

MAX_GRADIENT_TOKENS = 256
MAX_LOSS_TOKENS = 16_384


def measure(
    name: str,
    model: GPT2,
    corpus: Corpus | None,
    tied_W_E: np.ndarray | None,
    progress: OpenProgress,
    note: Callable[[str], Any],
) -> dict[str, Any]:
    """All numbers of a model, with its name as "model".

    A number is None if it is undefined, or needs a corpus or a tied model that is not given.
    `note` is called with what is left out. It and `progress` get texts that begin with `name`.
    """
    config = model.config
    count = parameter_count(config)
    with progress(f"{name}: direct path", config.vocab_size, "token") as bar:
        path_numbers = direct_path(model, corpus, bar.add)
    report: dict[str, Any] = {
        "model": name,
        "head": config.head,
        "parameters": count.total,
        "bytes": count.bytes,
        "direct_path": path_numbers,
        "embeddings": embeddings(model, corpus, tied_W_E),
        "corpus": None,
        "bigrams": None,
        "missing": None,
        "loss": None,
        "gradients": None,
    }
    if corpus is None:
        return report

    report["corpus"] = corpus_numbers(corpus)
    if has_frequent_tokens(corpus):
        scores = measure_bigrams(name, model, corpus, progress, note)
        report["bigrams"] = scores
        report["missing"] = missing(scores)  # what the model lacks to predict the bigrams

    text = end_of_text(corpus.ids, config.n_ctx)
    heads = 1
    if not config.tied:
        heads = 2  # an untied model is also scored with the tied head
    with progress(f"{name}: loss", heads * text.size, "token") as bar:
        report["loss"] = losses(model, text, bar.add)
    if report["loss"] is not None:  # without a loss there is nothing to differentiate
        tokens = min(MAX_GRADIENT_TOKENS, config.n_ctx)
        last_ids = corpus.ids[-tokens - 1 :]  # one more, because the first is not predicted
        report["gradients"] = gradients(model, last_ids).lengths_and_cosine()
    return report


def has_frequent_tokens(corpus: Corpus) -> bool:
    """Whether there are enough frequent tokens for a mean over them to say something."""
    return corpus.frequent().size >= MIN_TOKENS


def corpus_numbers(corpus: Corpus) -> dict[str, float | int | None]:
    """What the report says of the text itself. "tokens" and "frequent" are numbers of tokens."""
    floor = None
    if has_frequent_tokens(corpus):
        floor = jsd_floor(corpus)
    return {
        "tokens": corpus.ids.size,
        "frequent": corpus.frequent().size,
        "jsd_floor": floor,
        "self_prediction": corpus.self_prediction(),
    }


def measure_bigrams(
    name: str,
    model: GPT2,
    corpus: Corpus,
    progress: OpenProgress,
    note: Callable[[str], Any],
) -> dict[str, Scores]:
    """The scores of every path, and of the best output matrices, against the corpus's bigrams.

    The corpus must have frequent tokens (has_frequent_tokens).
    """
    with progress(f"{name}: the best W_U", STEPS, "step") as bar:
        solved = solved_paths(model, corpus, bar.add)
    if not solved:
        note(f"{name}: the corpus has too many different tokens to solve for the best W_U")
    paths = 1 + len(paths_of(model)) + len(solved)  # 1 for "unigram"
    with progress(f"{name}: bigrams", paths * corpus.frequent().size, "token") as bar:
        scores = bigrams(model, corpus, bar.add, solved)
    assert scores is not None  # it is None only for a corpus without frequent tokens
    return scores


def end_of_text(ids: np.ndarray, n_ctx: int) -> np.ndarray:  # [N] -> [n]
    """The tokens of a text's end on which the loss is measured: the last MAX_LOSS_TOKENS.

    If the last tenth of the text has more, they are windows of n_ctx tokens, spread evenly over it.
    """
    last_tenth = ids.size // 10
    end = ids[-max(MAX_LOSS_TOKENS, last_tenth) :]
    if end.size <= MAX_LOSS_TOKENS:
        return end
    windows = max(1, MAX_LOSS_TOKENS // n_ctx)  # one if the context is longer than the sample
    starts = np.linspace(0, end.size - n_ctx, windows).astype(np.int64)
    places = starts[:, None] + np.arange(n_ctx)  # [windows, n_ctx]
    return end[places].ravel()


def losses(
    model: GPT2, ids: np.ndarray, progress: OnProgress = None
) -> dict[str, float | int | None] | None:
    """Three losses of a text `ids` [N] in nats per token.

    None if the text or the context has fewer than two tokens, so that none is predicted.
    "own" is the model's loss, "swapped" that of an untied model with the tied head (None for a tied
    model), "uniform" that of a uniform guess. "tokens" is how many tokens are predicted. The
    windows are as long as the context and do not overlap. `progress` is called with the number of
    tokens read, for each head. Raises TiedGPTError for a loss that is not a finite number.
    """
    n_ctx = model.config.n_ctx
    if min(ids.size, n_ctx) < 2:
        return None
    own = token_losses(model, ids, stride=n_ctx, progress=progress)
    if not np.isfinite(own).all():
        raise TiedGPTError("the loss is not a finite number: the model's checkpoint is damaged")
    swapped = None
    if not model.config.tied:
        swapped_losses = token_losses(model.tie(), ids, stride=n_ctx, progress=progress)
        swapped = float(swapped_losses.mean())
    return {
        "own": float(own.mean()),
        "swapped": swapped,
        "uniform": math.log(model.config.vocab_size),
        "tokens": own.size,
    }
