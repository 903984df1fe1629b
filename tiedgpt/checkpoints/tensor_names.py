"""Tensor names: those in the files of transformers and of OpenAI, and ours (gpt2/parameters.py).

transformers writes our names, in some files with a prefix: `transformer.h.0.ln_1.weight`. Older
files also contain the causal mask of each layer, which is not a parameter.

comparison/conventions.py translates the names of arrays that another program has in memory.
"""

import re

TRANSFORMERS_PREFIX = "transformer."
HEAD = "lm_head.weight"  # W_U transposed; it never has the prefix
MASK_BUFFER = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")


def from_transformers(name: str) -> str | None:
    """Our name of a tensor in a file of transformers; None for a mask.

    >>> from_transformers("transformer.h.0.ln_1.weight"), from_transformers("h.0.ln_1.weight")
    ('h.0.ln_1.weight', 'h.0.ln_1.weight')
    >>> print(from_transformers("h.0.attn.masked_bias"))
    None
    """
    name = name.removeprefix(TRANSFORMERS_PREFIX)
    if MASK_BUFFER.fullmatch(name):
        return None
    return name


def to_transformers(name: str) -> str:
    """The name of a parameter in the files that transformers writes today.

    >>> to_transformers("h.0.ln_1.weight"), to_transformers("lm_head.weight")
    ('transformer.h.0.ln_1.weight', 'lm_head.weight')
    """
    if name == HEAD:
        return name
    return TRANSFORMERS_PREFIX + name


def to_tensorflow(name: str) -> str:
    """OpenAI's name of a parameter.

    >>> to_tensorflow("h.0.attn.c_attn.weight"), to_tensorflow("h.11.ln_1.weight")
    ('model/h0/attn/c_attn/w', 'model/h11/ln_1/g')
    >>> to_tensorflow("ln_f.bias"), to_tensorflow("wte.weight")
    ('model/ln_f/b', 'model/wte')
    """
    if name in ("wte.weight", "wpe.weight"):
        return f"model/{name.removesuffix('.weight')}"
    module, _, kind = name.rpartition(".")
    if kind == "bias":
        letter = "b"
    elif "ln_" in module:
        letter = "g"  # the gain of a layer norm
    else:
        letter = "w"
    path = module.replace("h.", "h", 1).replace(".", "/")
    return f"model/{path}/{letter}"
