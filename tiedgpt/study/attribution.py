"""Where a logit comes from: the parts of a model that add to the last token's residual stream.

The residual stream is a sum. The embeddings begin it; every head, every MLP and every bias adds a
vector [D] to it. A token's logit is linear in this sum once the standard deviation s of ln_f is
held at its value:

    logit = ln_f(resid) . u          u = W_U[:, token]
          = resid . d + bias . u     d = (g - mean(g)) / s, with g = weight * u

weight and bias are those of ln_f. For a difference of two logits, u is the difference of their
columns of W_U. (Subtracting the mean of resid is the same as subtracting the mean of g, because
mean(x) . g = x . mean(g).) So each part c contributes c . d, and the contributions add up to the
logit.

This is the direct effect of a part. What later layers do with it counts as theirs: `ablation`
removes a part, so that the rest of the model runs without it.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from ..errors import ArgumentError, nearest_names, short_repr
from ..generation import check_prompt_ids
from ..gpt2.config import Config
from ..gpt2.model import GPT2
from ..gpt2.run import Edits, Tape
from .predictions import last_tape, residual_streams


def attribute(
    model: GPT2, ids: Any, token: int, against: int | None = None, tape: Tape | None = None
) -> dict[str, float]:
    """What each part of the model adds to the logit of `token` after a prompt `ids` [T].

    With `against`, it is the logit of `token` less that of `against`. The parts are in the order of
    the forward pass: wte, wpe; for each layer N attn.N.head.0, attn.N.head.1, ..., attn.N.bias,
    mlp.N, mlp.N.bias (the biases are those of c_proj); and ln_f.bias. tape: the activations of the
    last token, if the model has read the prompt. Raises ArgumentError for a prompt or a token that
    the model cannot read.
    """
    u = unembedding_of(model, token)
    if against is not None:
        u = u - unembedding_of(model, against)

    if tape is None:
        tape = last_tape(model, ids, n=1)  # of the last token only; it checks the ids
    *_, last_stream = residual_streams(tape).values()
    resid = last_stream[0, -1].astype(np.float64)  # [D], the input of ln_f
    g = model.parameters["ln_f.weight"] * u
    d = (g - g.mean()) / math.sqrt(resid.var() + model.config.layer_norm_epsilon)

    parts = {"wte": model.W_E[ids[-1]] @ d}
    parts["wpe"] = model.parameters["wpe.weight"][len(ids) - 1] @ d
    for layer, block in enumerate(model.tree["h"]):
        attn_proj = block["attn"]["c_proj"]
        mlp_proj = block["mlp"]["c_proj"]
        heads = tape[f"attn.{layer}.heads"][0, :, -1]  # [H, K], of the last token
        # c_proj multiplies the heads' outputs, one after the other. So each head has K of its rows.
        directions = (attn_proj["weight"] @ d).reshape(heads.shape)  # [H, K]
        head_parts = (heads * directions).sum(axis=1)  # [H]
        for head, part in enumerate(head_parts):
            parts[f"attn.{layer}.head.{head}"] = part
        parts[f"attn.{layer}.bias"] = attn_proj["bias"] @ d
        mlp_out = tape[f"mlp.{layer}.out"][0, -1]  # [D], with the bias
        parts[f"mlp.{layer}"] = (mlp_out - mlp_proj["bias"]) @ d
        parts[f"mlp.{layer}.bias"] = mlp_proj["bias"] @ d
    parts["ln_f.bias"] = model.parameters["ln_f.bias"] @ u
    return {name: float(part) for name, part in parts.items()}


def unembedding_of(model: GPT2, token: int) -> np.ndarray:  # -> [D] float64
    """The token's column of W_U. Raises ArgumentError for a token that is not in the vocabulary."""
    [token] = check_prompt_ids([token], model.config)
    return model.W_U[:, token].astype(np.float64)


def ablation(config: Config, names: Iterable[str]) -> Edits:
    """Edits that set parts of the model to 0, for `model(ids, edit=...)`.

    Names: attn.N.head.H, attn.N and mlp.N, the last two with c_proj's bias. Raises ArgumentError
    for others.
    """
    # Each part that can be removed -> its activation, and its place on axis 1 of that
    removable: dict[str, tuple[str, int | slice]] = {}
    for layer in range(config.n_layer):
        # These are [B, T, D], so all positions are set to 0.
        removable[f"attn.{layer}"] = (f"attn.{layer}.out", slice(None))
        removable[f"mlp.{layer}"] = (f"mlp.{layer}.out", slice(None))
        for head in range(config.n_head):  # one of [B, H, T, K]
            removable[f"attn.{layer}.head.{head}"] = (f"attn.{layer}.heads", head)

    places_by_activation = defaultdict(list)  # several heads of a layer are in one activation
    for name in names:
        if name not in removable:
            alike = nearest_names(name, removable) or "none, for it has no layers"
            raise ArgumentError(
                f"{short_repr(name)} is not a part that can be removed; the nearest are {alike}"
            )
        activation, place = removable[name]
        places_by_activation[activation].append(place)
    return {
        activation: partial(set_to_zero, places)
        for activation, places in places_by_activation.items()
    }


def set_to_zero(places: list[int | slice], x: np.ndarray) -> np.ndarray:  # [B, ...] -> [B, ...]
    """An edit: set these places on axis 1 to 0. `x` is a copy that the edit may change."""
    for place in places:
        x[:, place] = 0
    return x
