"""Four paths from one token to logits. Each uses more of the model than the one before.

    raw      W_E[t]                                           -> W_U     a row of A = W_E W_U
    normed   W_E[t]                                   -> ln_f -> W_U     a GPT-2 without layers
    mlp0     W_E[t] -> W_E[t] + MLP_0(ln_2 of W_E[t]) -> ln_f -> W_U     block 0, no attention
    model    W_E[t] + wpe[0] -> every block           -> ln_f -> W_U     the model, for prompt [t]

The first three add no position embedding, because they ask what a token predicts at any position.
`raw` skips ln_f, so the scale of its logits has no meaning: use only their order.

Each path is a function path(model, tokens [n]) -> logits [n, V], biases included. Give it many
tokens in pieces (`split_tokens`).
"""

from collections.abc import Callable, Iterator

import numpy as np

from ..gpt2.checks import check_logits
from ..gpt2.model import GPT2, mlp, norm, unembed
from ..gpt2.ops import log_softmax
from ..gpt2.run import Edits, OnProgress, Run

MAX_LOGITS = 2**23  # computed at once: 32 MB in float32


def raw(model: GPT2, tokens: np.ndarray) -> np.ndarray:  # [n] -> [n, V]
    """A[t] = W_E[t] W_U."""
    return unembed(model.W_E[tokens], model.W_U)


def normed(model: GPT2, tokens: np.ndarray) -> np.ndarray:  # [n] -> [n, V]
    """ln_f(W_E[t]) W_U."""
    return final_logits(model, model.W_E[tokens])


def mlp0(model: GPT2, tokens: np.ndarray, layer: int = 0) -> np.ndarray:  # [n] -> [n, V]
    """ln_f(W_E[t] + MLP_0(ln_2(W_E[t]))) W_U, with block 0's ln_2. The model must have a block.

    layer: the block whose ln_2 and MLP are used, to compare the first with another one.
    """
    block = model.tree["h"][layer]
    resid_mid = model.W_E[tokens]
    mlp_in = norm(resid_mid, block["ln_2"], model.config)
    mlp_out = mlp(mlp_in, **block["mlp"], layer=layer, run=Run(model.config))
    return final_logits(model, resid_mid + mlp_out)


def whole_model(  # [n] -> [n, V]
    model: GPT2, tokens: np.ndarray, start: int | None = None, edit: Edits | None = None
) -> np.ndarray:
    """The model's logits for a prompt of one token.

    start: a token that begins a document, which the prompt then has before its one token. Many
        models have never seen a text that begins with another token.
    """
    prompts = tokens[:, None]  # [n, 1]: each token is a prompt
    if start is not None:
        prompts = np.stack([np.full_like(tokens, start), tokens], axis=1)  # [n, 2]
    final = model.final(prompts, edit=edit)
    return unembed(final[:, -1], model.W_U)


def final_logits(model: GPT2, resid: np.ndarray) -> np.ndarray:  # [..., D] -> [..., V]
    """Apply ln_f and the output matrix to a residual stream."""
    return unembed(final_norm(model, resid), model.W_U)


def final_norm(model: GPT2, resid: np.ndarray) -> np.ndarray:  # [..., D] -> [..., D]
    return norm(resid, model.tree["ln_f"], model.config)


Path = Callable[[GPT2, np.ndarray], np.ndarray]
PATHS: dict[str, Path] = {"raw": raw, "normed": normed, "mlp0": mlp0, "model": whole_model}
PATH_PARTS = {  # the parts of the model that each path uses, for reports
    "raw": "W_E, W_U",
    "normed": "W_E, ln_f, W_U",
    "mlp0": "W_E, first MLP, ln_f, W_U",
    "model": "the whole model",
}


def paths_of(model: GPT2) -> dict[str, Path]:
    """The paths that exist in the model: without layers there is no mlp0."""
    paths = dict(PATHS)
    if model.config.n_layer == 0:
        del paths["mlp0"]
    return paths


def split_tokens(tokens: np.ndarray, V: int, progress: OnProgress = None) -> Iterator[np.ndarray]:
    """`tokens` [n] in pieces [m] whose logits [m, V] are at most MAX_LOGITS numbers."""
    step = max(1, MAX_LOGITS // V)  # one token, if its logits alone are more
    for start in range(0, tokens.size, step):
        piece = tokens[start : start + step]
        yield piece
        if progress:
            progress(piece.size)


def log_probabilities(logits: np.ndarray) -> np.ndarray:  # [..., V] -> [..., V] float64
    """log_softmax in float64. A logit of -inf is a probability of 0.

    Raises TiedGPTError for a row with nan or inf.
    """
    # The highest logit of a row with nan or inf is nan or inf.
    check_logits(logits.max(axis=-1))
    return log_softmax(logits.astype(np.float64))


def top_k(scores: np.ndarray, k: int) -> np.ndarray:  # [V] -> [k]
    """The ids of the k highest scores, or of all if there are fewer, highest first.

    Of equal scores, that of the lower id comes first.

    >>> top_k(np.array([0.5, 3.0, 1.0, 2.0]), 3).tolist(), top_k(np.zeros(9), 2).tolist()
    ([1, 3, 2], [0, 1])
    """
    # A partition finds the k-th highest score without sorting the whole vocabulary. If there are
    # not more than k scores, all are above -inf or equal to it.
    kth_highest = -np.inf
    if k < scores.size:
        kth_highest = np.partition(scores, -k)[-k]
    candidates = np.flatnonzero(scores >= kth_highest)  # more than k if there are equal scores
    order = np.argsort(-scores[candidates], kind="stable")
    return candidates[order][:k]
