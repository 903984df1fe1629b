"""How symmetric the scores of each path are: does the first MLP repair the symmetry of a tied model?"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..model import GPT2
from ..study.paths import Path

MEASURED, SAMPLE = 1024, 512  # a vocabulary larger than the first is measured by a sample of its tokens
PIECE, LOGITS = 128, 2**20  # tokens and logits at once, at most: other requests wait meanwhile


def symmetry_of(path: Path, model: GPT2, tokens: np.ndarray, step: Callable[[], Any]) -> dict[str, float]:
    """|A - A^T| / |A| of a path's scores A [n, n] of `tokens` [n] after one another.

    And the share of these tokens that score themselves highest of all V. 0 is symmetric; two independent
    random scores have sqrt(2).
    """
    rows, hits = [], 0
    size = min(PIECE, max(1, LOGITS // model.config.vocab_size))
    for piece in np.array_split(tokens, -(-tokens.size // size)):
        logits = path(model, piece)  # [m, V]
        hits += int((logits.argmax(axis=1) == piece).sum())
        rows.append(logits[:, tokens].astype(np.float64))
        step()
    A = np.concatenate(rows)
    norm = np.linalg.norm(A)
    asymmetry = np.linalg.norm(A - A.T) / norm if norm else 0.0
    return {"asymmetry": float(asymmetry), "self_prediction": hits / tokens.size}


def measured_tokens(model: GPT2) -> np.ndarray:  # -> [n]
    """All tokens, or SAMPLE of a large vocabulary, always the same."""
    V = model.config.vocab_size
    sample = np.random.default_rng(0).permutation(V)[: V if V <= MEASURED else SAMPLE]
    return np.sort(sample)
