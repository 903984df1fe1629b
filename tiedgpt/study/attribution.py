"""Where a logit comes from: the parts of a model that add to the last token's residual stream.

The residual stream is a sum. The embeddings begin it; every head, every MLP and every bias adds a
vector [D] to it. A token's logit is linear in this sum once the standard deviation s of ln_f is
held at its value:

    logit = ln_f(resid) . u          u = W_U[:, token]; for a difference of two logits, of their columns
          = resid . d + bias . u     d = (g - mean(g)) / s, with g = weight * u; weight and bias are ln_f's

(Subtracting the mean of resid is the same as subtracting the mean of g, because mean(x) . g = x .
mean(g).) So each part c contributes c . d, and the contributions add up to the logit.

This is the direct effect of a part. What later layers do with it counts as theirs: `ablation`
removes a part, so that the rest of the model runs without it.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np

from ..errors import ArgumentError, short_repr
from ..gpt2.checks import check_prompt_ids
from ..gpt2.config import Config
from ..gpt2.model import GPT2
from ..gpt2.run import Edits, Tape
from .predictions import last_tape


def attribute(
    model: GPT2, ids: Any, token: int, against: int | None = None, tape: Tape | None = None
) -> dict[str, float]:
    """What each part adds to the logit of `token` after a prompt `ids` [T], in the order of the
    forward pass.

    With `against`, the logit of `token` less that of `against`. The parts are wte, wpe; for each
    layer N attn.N.head.0, attn.N.head.1, ..., attn.N.bias, mlp.N, mlp.N.bias (the biases are those
    of c_proj); and ln_f.bias. `tape` has the activations of the last token if the model has read
    the prompt already (`last_tape`). Raises ArgumentError for a prompt or a token that the model
    cannot read.
    """
    config = model.config
    ids = np.array(check_prompt_ids(ids, config))
    columns = model.W_U.T[
        check_prompt_ids([token] if against is None else [token, against], config)
    ]
    u = columns[0].astype(np.float64) - columns[1:].sum(axis=0)

    tape = tape or last_tape(model, ids, 1)
    resid = tape[f"resid_post.{config.n_layer - 1}" if config.n_layer else "embed"][0, -1].astype(
        np.float64
    )
    d = u * model.parameters["ln_f.weight"]
    d = (d - d.mean()) / math.sqrt(resid.var() + config.layer_norm_epsilon)

    parts = {"wte": model.W_E[ids[-1]] @ d, "wpe": model.parameters["wpe.weight"][len(ids) - 1] @ d}
    for layer, block in enumerate(model.tree["h"]):
        attn, mlp = block["attn"]["c_proj"], block["mlp"]["c_proj"]
        heads = tape[f"attn.{layer}.heads"][0, :, -1]  # [H, K]
        by_head = (heads * (attn["weight"] @ d).reshape(heads.shape)).sum(axis=1)  # [H]
        parts |= {f"attn.{layer}.head.{head}": part for head, part in enumerate(by_head)}
        parts[f"attn.{layer}.bias"] = attn["bias"] @ d
        parts[f"mlp.{layer}"] = (tape[f"mlp.{layer}.out"][0, -1] - mlp["bias"]) @ d
        parts[f"mlp.{layer}.bias"] = mlp["bias"] @ d
    parts["ln_f.bias"] = model.parameters["ln_f.bias"] @ u
    return {name: float(part) for name, part in parts.items()}


def ablation(config: Config, names: Iterable[str]) -> Edits:
    """Edits that set parts of the model to 0, for `model(ids, edit=...)`.

    Names: attn.N.head.H, attn.N and mlp.N, the last two with c_proj's bias. Raises ArgumentError
    for others.
    """
    known: dict[str, tuple[str, Any]] = {}  # name -> an activation [B, ...] and its part, on axis 1
    for layer in range(config.n_layer):
        known |= {
            f"{kind}.{layer}": (f"{kind}.{layer}.out", slice(None)) for kind in ("attn", "mlp")
        }
        known |= {
            f"attn.{layer}.head.{h}": (f"attn.{layer}.heads", h) for h in range(config.n_head)
        }
    removed = defaultdict(list)
    for name in names:
        if name not in known:
            near = (
                ", ".join(get_close_matches(name, known, n=3, cutoff=0))
                or "none, for it has no layers"
            )
            raise ArgumentError(
                f"{short_repr(name)} is no part that can be removed; the nearest are {near}"
            )
        activation, part = known[name]
        removed[activation].append(part)

    def set_to_zero(parts: list[Any], x: np.ndarray) -> np.ndarray:  # [B, ...], an edit's copy
        for part in parts:
            x[:, part] = 0
        return x

    return {activation: partial(set_to_zero, parts) for activation, parts in removed.items()}
