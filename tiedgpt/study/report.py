"""All measurements of a model as one report, which is what `tiedgpt study --json` prints of it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..model import GPT2
from ..parameters import count_parameters
from .bigrams import bigrams
from .corpus import MIN_TOKENS, Corpus
from .direct_path import direct_path, jsd_floor
from .gradients import gradients
from .paths import paths_of
from .similarity import embeddings
from .solved import STEPS, missing, solved_paths
from .swap import losses, sample

MAX_GRADIENT_TOKENS = 256


def measure(
    name: str,
    model: GPT2,
    corpus: Corpus | None,
    tied_W_E: np.ndarray | None,
    progress: Callable[[str, int, str], Any],
    note: Callable[[str], Any],
) -> dict[str, Any]:
    """A model's numbers, and its name as "model". None: undefined, or it needs a corpus or a tied model.

    `progress(doing, total, unit)` is a context whose `add(n)` is called with what is done. `note` is called
    with what is left out. Both get texts that begin with `name`.
    """
    config = model.config
    count = count_parameters(config)[config.head]
    with progress(f"{name}: direct path", config.vocab_size, "token") as bar:
        direct = direct_path(model, corpus, bar.add)
    report: dict[str, Any] = {"model": name, "head": config.head, "parameters": count["total"]}
    report |= {
        "bytes": count["bytes"],
        "direct_path": direct,
        "embeddings": embeddings(model, corpus, tied_W_E),
    }
    report |= dict.fromkeys(("corpus", "bigrams", "missing", "loss", "gradients"))
    if corpus is None:
        return report
    frequent = corpus.frequent().size
    report["corpus"] = {"tokens": corpus.ids.size, "frequent": frequent}
    report["corpus"] |= {"self_prediction": corpus.self_prediction(), "jsd_floor": None}
    if frequent >= MIN_TOKENS:
        report["corpus"]["jsd_floor"] = jsd_floor(corpus)
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
