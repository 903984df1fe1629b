"""The source code of the functions beside the pictures, whole."""

import inspect
import textwrap
from typing import Any

from ..backward import embed_backward
from ..inference.sampling import Sampling
from ..model import attend, mlp, unembed, unembedding
from ..parameters import count_matrices
from ..study.attribution import attribute
from ..study.gradients import head_backward
from ..study.paths import final_logits, mlp0, raw
from ..study.similarity import nearest
from ..study.solved import fit_softmax
from ..study.toy import solve
from .symmetry import symmetry_of

SHOWN = (
    *(unembedding, unembed, raw, symmetry_of, mlp0, mlp, nearest, fit_softmax, Sampling.probabilities),
    *(solve, final_logits, attribute, attend, head_backward, embed_backward, count_matrices),
)


def sources() -> dict[str, dict[str, Any]]:
    """For the name of each function, {"file", "line", "text"}; `line` is the number of its first line."""
    found = {}
    for function in SHOWN:
        lines, first = inspect.getsourcelines(function)
        file = function.__module__.replace(".", "/") + ".py"
        text = textwrap.dedent("".join(lines)).rstrip()
        found[function.__name__] = {"file": file, "line": first, "text": text}
    return found
