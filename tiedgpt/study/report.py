"""All measurements of a model as one report, which is what `tiedgpt study --json` prints of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checkpoints.huggingface import Checkpoint
from ..errors import TiedGPTError
from ..model import GPT2
from ..parameters import count_parameters
from ..tokenizer import Tokenizer
from .bigrams import bigrams
from .corpus import MIN_TOKENS, Corpus
from .direct_path import direct_path
from .gradients import batch_gradients
from .paths import paths_of
from .similarity import embeddings
from .solved import STEPS, missing, solved_paths
from .swap import losses, sample
from .symmetry import jsd_floor

Progress = Callable[[str, int, str], Any]
Note = Callable[[str], Any]
MAX_GRADIENT_TOKENS = 256


@dataclass
class Subject:
    """A model to study, not loaded yet, with its tokenizer and the corpus in its tokens, if there are any."""

    name: str
    checkpoint: Checkpoint
    tokenizer: Tokenizer | None
    vocabulary: object  # equal for two models in which each id is the same token; None if that is not known
    corpus: Corpus | None = None


def measure_all(
    subjects: Sequence[Subject], load: Callable[[Checkpoint], GPT2], progress: Progress, note: Note
) -> list[dict[str, Any]]:
    """Each model's numbers, in the order of the subjects, with one model in memory at a time."""
    reports: dict[int, dict[str, Any]] = {}
    tied: list[tuple[Subject, np.ndarray]] = []  # they are studied first: the others are compared with them
    for number, subject in sorted(enumerate(subjects), key=lambda item: not item[1].checkpoint.config.tied):
        name, known = subject.name, subject.vocabulary
        tied_W_E = next((W_E for other, W_E in tied if known and other.vocabulary == known), None)
        try:
            model = load(subject.checkpoint)
            numbers = measure(name, model, subject.corpus, tied_W_E, progress, note)
        except TiedGPTError as error:
            raise TiedGPTError(f"{name}: {error}") from error
        reports[number] = {"model": name, **numbers}
        if model.config.tied:
            tied.append((subject, model.W_E))
    return [reports[number] for number in range(len(subjects))]


def measure(
    name: str,
    model: GPT2,
    corpus: Corpus | None,
    tied_W_E: np.ndarray | None,
    progress: Progress,
    note: Note,
) -> dict[str, Any]:
    """A model's numbers. None: undefined, or it needs a corpus or a tied model.

    `progress(doing, total, unit)` is a context whose `add(n)` is called with what is done. `note` is called
    with what is left out. Both get texts that begin with `name`.
    """
    config = model.config
    count = count_parameters(config)[config.head]
    with progress(f"{name}: direct path", config.vocab_size, "token") as bar:
        direct = direct_path(model, corpus, bar.add)
    report: dict[str, Any] = {
        "head": config.head,
        "parameters": count["total"],
        "bytes": count["bytes"],
        "corpus": None,
        "direct_path": direct,
        "bigrams": None,
        "missing": None,
        "embeddings": embeddings(model, corpus, tied_W_E),
        "loss": None,
        "gradients": None,
    }
    if corpus is None:
        return report
    frequent = corpus.frequent().size
    enough = frequent >= MIN_TOKENS
    report["corpus"] = {
        "tokens": corpus.ids.size,
        "frequent": frequent,
        "self_prediction": corpus.self_prediction(),
        "jsd_floor": jsd_floor(corpus) if enough else None,
    }
    if enough:
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
        ids = corpus.ids[None, -min(MAX_GRADIENT_TOKENS, config.n_ctx) - 1 :]
        report["gradients"] = batch_gradients(model, ids[:, :-1], ids[:, 1:]).whole()
    return report
