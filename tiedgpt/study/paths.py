"""Four paths from one token to logits, each longer than the one before it.

    raw      W_E[t]                                               -> W_U     a row of A = W_E W_U
    normed   W_E[t]                                       -> ln_f -> W_U     a GPT-2 of no layers
    mlp0     W_E[t] -> W_E[t] + MLP_0(ln_2 of W_E[t])     -> ln_f -> W_U     a block whose attention is silent
    model    W_E[t] + wpe[0] -> every block               -> ln_f -> W_U     the model, given t and no more

The first three ask what a token says wherever it stands, so no position is added to them: a GPT-2 of no
layers differs from its `normed` by wpe alone. MLP_0 adds to the stream, as in a block, and what the stream
held stays in it.

A model's logits have passed ln_f, and `raw` has not: how large its logits are means nothing, and softmax
makes of them nearly the same probability for all. Judge it by their order.

Each is `path(model, tokens [n]) -> logits [n, V]`, with all its biases. For many tokens, go by `blocks`.
"""

from collections.abc import Callable, Iterator

import numpy as np

from ..errors import TiedGPTError
from ..model import GPT2, mlp, unembed
from ..ops import layer_norm, log_softmax
from ..run import Run

BLOCK = 2**24  # logits at a time: 64 MB in float32


def raw(model: GPT2, tokens: np.ndarray) -> np.ndarray:  # [n] -> [n, V]
    """A[t] = W_E[t] W_U."""
    return unembed(model.W_E[tokens], model.W_U)


def normed(model: GPT2, tokens: np.ndarray) -> np.ndarray:  # [n] -> [n, V]
    """ln_f(W_E[t]) W_U."""
    return read_out(model, model.W_E[tokens])


def mlp0(model: GPT2, tokens: np.ndarray) -> np.ndarray:  # [n] -> [n, V]
    """ln_f(W_E[t] + MLP_0(ln_2(W_E[t]))) W_U, with block 0's ln_2. The model must have a block."""
    block = model.tree["h"][0]
    resid_mid = model.W_E[tokens]
    mlp_in = layer_norm(resid_mid, **block["ln_2"], eps=model.config.layer_norm_epsilon)
    return read_out(model, resid_mid + mlp(mlp_in, **block["mlp"], run=Run(model.config)))


def whole_model(model: GPT2, tokens: np.ndarray) -> np.ndarray:  # [n] -> [n, V]
    """The model's logits after each token by itself, at position 0."""
    return unembed(model.hidden(tokens[:, None])[:, 0], model.W_U)


def read_out(model: GPT2, resid: np.ndarray) -> np.ndarray:  # [..., D] -> [..., V]
    """What a residual stream says: ln_f, then the head."""
    final = layer_norm(resid, **model.tree["ln_f"], eps=model.config.layer_norm_epsilon)
    return unembed(final, model.W_U)


PATHS: dict[str, Callable[[GPT2, np.ndarray], np.ndarray]] = {
    "raw": raw,
    "normed": normed,
    "mlp0": mlp0,
    "model": whole_model,
}


def paths_of(model: GPT2) -> dict[str, Callable[[GPT2, np.ndarray], np.ndarray]]:
    """The paths that the model has: one of no layers has no first MLP."""
    return {name: path for name, path in PATHS.items() if name != "mlp0" or model.config.n_layer > 0}


def blocks(tokens: np.ndarray, V: int) -> Iterator[np.ndarray]:  # [n] -> a few times [m]
    """`tokens` in pieces whose logits [m, V] are a moderate array each."""
    step = max(1, BLOCK // V)
    return (tokens[start : start + step] for start in range(0, tokens.size, step))


def log_probabilities(logits: np.ndarray) -> np.ndarray:  # [..., V] -> [..., V] float64
    """log_softmax in float64. Raises TiedGPTError when a logit is nan or inf (a damaged checkpoint)."""
    if not np.isfinite(logits.max(axis=-1)).all():
        raise TiedGPTError("the model's logits are not finite numbers: its checkpoint is damaged")
    return log_softmax(logits.astype(np.float64))


def best(scores: np.ndarray, k: int) -> np.ndarray:  # [V] -> [k]
    """The ids of the k highest scores (all, if there are fewer), the highest first; of equals the lower ids.

    >>> best(np.array([0.5, 3.0, 1.0, 2.0]), 3).tolist(), best(np.zeros(9), 2).tolist()
    ([1, 3, 2], [0, 1])
    """
    if k < scores.size:
        top = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
    else:
        top = np.arange(scores.size)
    return top[np.argsort(-scores[top], kind="stable")][:k]


def likeliest(logits: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:  # [V] -> [k], [k]
    """The k likeliest tokens, the first before all, and their probabilities."""
    log_p = log_probabilities(logits)
    tokens = best(log_p, k)
    return tokens, np.exp(log_p[tokens])
