"""All measurements of a model as one report, which is what `tiedgpt study --json` prints of it."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import TiedGPTError
from ..gpt2.model import GPT2
from ..gpt2.parameters import parameter_count
from ..gpt2.run import OnProgress
from ..inference.evaluation import token_losses
from .bigrams import bigrams
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
    progress: Callable[[str, int, str], Any],
    note: Callable[[str], Any],
) -> dict[str, Any]:
    """A model's numbers, and its name as "model". None: undefined, or it needs a corpus or a tied
    model.

    `progress(doing, total, unit)` is a context whose `add(n)` is called with what is done. `note`
    is called with what is left out. Both get texts that begin with `name`.
    """
    config = model.config
    count = parameter_count(config)
    report: dict[str, Any] = {"model": name, "head": config.head}
    report |= {"parameters": count.total, "bytes": count.bytes}
    with progress(f"{name}: direct path", config.vocab_size, "token") as bar:
        report["direct_path"] = direct_path(model, corpus, bar.add)
    report["embeddings"] = embeddings(model, corpus, tied_W_E)
    report |= dict.fromkeys(("corpus", "bigrams", "missing", "loss", "gradients"))
    if corpus is None:
        return report
    frequent = corpus.frequent().size
    floor = jsd_floor(corpus) if frequent >= MIN_TOKENS else None
    report["corpus"] = {"tokens": corpus.ids.size, "frequent": frequent, "jsd_floor": floor}
    report["corpus"]["self_prediction"] = corpus.self_prediction()
    if frequent >= MIN_TOKENS:
        with progress(f"{name}: the best W_U", STEPS, "step") as bar:
            solved = solved_paths(model, corpus, bar.add)
        if not solved:
            note(f"{name}: the corpus has too many different tokens to solve for the best W_U")
        paths = 1 + len(paths_of(model)) + len(solved)
        with progress(f"{name}: bigrams", frequent * paths, "token") as bar:
            report["bigrams"] = scores = bigrams(model, corpus, bar.add, solved)
        report["missing"] = missing(scores or {})
    end = sample(corpus.ids, config.n_ctx)
    with progress(f"{name}: loss", end.size * (1 if config.tied else 2), "token") as bar:
        report["loss"] = losses(model, end, bar.add)
    if report["loss"]:
        ids = corpus.ids[-min(MAX_GRADIENT_TOKENS, config.n_ctx) - 1 :]
        report["gradients"] = gradients(model, ids).whole()
    return report


def sample(ids: np.ndarray, n_ctx: int) -> np.ndarray:  # [N] -> [n]
    """The last MAX_LOSS_TOKENS of a text; if its last tenth has more, windows spread evenly over
    that."""
    end = ids[-max(MAX_LOSS_TOKENS, ids.size // 10) :]
    if end.size <= MAX_LOSS_TOKENS:
        return end
    starts = np.linspace(0, end.size - n_ctx, max(1, MAX_LOSS_TOKENS // n_ctx)).astype(np.int64)
    return end[starts[:, None] + np.arange(n_ctx)].ravel()


def losses(
    model: GPT2, ids: np.ndarray, progress: OnProgress = None
) -> dict[str, float | int | None] | None:
    """{"own", "swapped", "uniform", "tokens"}: three losses in nats per token of `ids` [N], and
    their number.

    "own" is the model's loss, "swapped" that of an untied model with the tied head (None for a tied
    model), "uniform" that of a uniform guess. Windows as long as the context, without overlap.
    `progress` is called with the number of tokens read, for each head. None for fewer than two
    tokens or a context of one.
    """
    n_ctx = model.config.n_ctx
    if min(ids.size, n_ctx) < 2:
        return None
    own = token_losses(model, ids, n_ctx, progress)
    if not np.isfinite(own).all():
        raise TiedGPTError("the loss is not a finite number: the model's checkpoint is damaged")
    swapped = (
        None if model.config.tied else float(token_losses(model.tie(), ids, n_ctx, progress).mean())
    )
    uniform = math.log(model.config.vocab_size)
    return {"own": float(own.mean()), "swapped": swapped, "uniform": uniform, "tokens": own.size}
