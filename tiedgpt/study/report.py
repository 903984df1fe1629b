"""All measurements of a model as one report, which is what `tiedgpt study --json` prints of it."""

import math
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
from .calibrated import calibrated_paths
from .corpus import MIN_TOKENS, Corpus
from .direct_path import direct_path
from .dynamics import effective_rank, negative_gains
from .fits import FAMILIES, fit_families
from .fits import STEPS as FIT_STEPS
from .gradients import batch_gradients
from .paths import paths_of
from .similarity import embeddings
from .solved import STEPS, missing, solved_paths
from .swap import losses, sample
from .symmetry import jsd_floor, text_asymmetry

Fits = dict[tuple[int, int], dict[str, dict[str, float]]]  # corpus and width -> fits
Progress = Callable[[str, int, str], Any]
Note = Callable[[str], Any]
MAX_FIT_PRODUCTS = 2**27  # of a step: V V D. Larger fits would take more than two minutes
MAX_TABLE = 2048  # tokens of the corpus whose pairs are compared with their reverse in a dense table
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
    fits: Fits = {}
    tied: list[tuple[Subject, np.ndarray]] = []  # they are studied first: the others are compared with them
    for number, subject in sorted(enumerate(subjects), key=lambda item: not item[1].checkpoint.config.tied):
        name, known = subject.name, subject.vocabulary
        tied_W_E = next((W_E for other, W_E in tied if known and other.vocabulary == known), None)
        try:
            model = load(subject.checkpoint)
            numbers = measure(name, model, subject.corpus, tied_W_E, fits, progress, note)
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
    fits: Fits,
    progress: Progress,
    note: Note,
) -> dict[str, Any]:
    """A model's numbers. None: undefined, or it needs a corpus or a tied model.

    The fits to a corpus do not depend on the model, only on its width: those in `fits` are not made again.
    `progress(doing, total, unit)` is a context whose `add(n)` is called with what is done. `note` is called
    with what is left out. Both get texts that begin with `name`.
    """
    head = model.config.head
    count = count_parameters(model.config)[head]
    report: dict[str, Any] = {"head": head, "parameters": count["total"], "bytes": count["bytes"]}
    report["corpus"] = None
    with progress(f"{name}: direct path", 2 * model.config.vocab_size, "token") as bar:
        report["direct_path"] = direct_path(model, corpus, bar.add)
    report |= {
        "bigrams": None,
        "missing": None,
        "fits": None,
        "negative_gains": negative_gains(model),
        "effective_rank": {"W_E": effective_rank(model.W_E), "W_U": effective_rank(model.W_U)},
        "gradients": None,
        "embeddings": embeddings(model, corpus, tied_W_E),
        "loss": None,
    }
    if corpus is None:
        return report
    frequent = corpus.frequent().size
    report["corpus"] = {
        "tokens": corpus.ids.size,
        "frequent": frequent,
        "self_prediction": corpus.self_prediction(),
        "jsd_floor": None,
        "asymmetry": None,
    }
    solved, calibrated = {}, {}
    if frequent >= MIN_TOKENS:
        report["corpus"] |= {
            "jsd_floor": jsd_floor(corpus),
            "asymmetry": text_asymmetry(corpus.table(corpus.most_common(MAX_TABLE))),
        }
        report["fits"] = fitted(name, corpus, model.config.n_embd, fits, progress, note)
        with progress(f"{name}: the best W_U", STEPS, "step") as bar:
            solved = solved_paths(model, corpus, bar.add)
        if not solved:
            note(f"{name}: the corpus has too many different tokens to solve for the best W_U")
        with progress(f"{name}: scales", 2 + len(paths_of(model)), "path") as bar:
            calibrated = calibrated_paths(model, corpus, bar.add)
    others = {**calibrated, **solved}
    with progress(f"{name}: bigrams", frequent * (1 + len(paths_of(model)) + len(others)), "token") as bar:
        report["bigrams"] = bigrams(model, corpus, bar.add, others)
    report["missing"] = missing(report["bigrams"] or {})
    end = sample(corpus.ids, model.config.n_ctx)
    with progress(f"{name}: loss", end.size * (1 if model.config.tied else 2), "token") as bar:
        report["loss"] = losses(model, end, bar.add)
    if report["loss"]:
        ids = corpus.ids[None, -min(MAX_GRADIENT_TOKENS, model.config.n_ctx) - 1 :]
        report["gradients"] = batch_gradients(model, ids[:, :-1], ids[:, 1:]).whole()
    return report


def fitted(
    name: str, corpus: Corpus, D: int, fits: Fits, progress: Progress, note: Note
) -> dict[str, dict[str, float]] | None:
    """The fits of width D to a corpus, from `fits` if they are there. None if they would take too long."""
    key = id(corpus), D
    if key not in fits:
        seen = corpus.frequent(1)
        if seen.size**2 * D > MAX_FIT_PRODUCTS:
            most = math.isqrt(MAX_FIT_PRODUCTS // D)
            note(
                f"{name}: the corpus has {seen.size} different tokens; the best A of each form is "
                f"not computed for more than {most} tokens of width {D}"
            )
            return None
        with progress(f"{name}: the best A", len(FAMILIES) * FIT_STEPS, "step") as bar:
            fits[key] = fit_families(corpus.table(seen), D, progress=bar.add)
    return fits[key]
