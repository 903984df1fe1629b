"""The source code of the functions that the page shows, in coloured pieces, with the lines that matter."""

import inspect
import io
import keyword
import re
import textwrap
import token as tokens
import tokenize
from collections.abc import Callable
from functools import cache
from typing import Any

from ..backward import embed_backward
from ..inference.sampling import Sampling
from ..model import attend, unembed, unembedding
from ..parameters import count_matrices
from ..study.attribution import attribute
from ..study.direct_path import asymmetry
from ..study.gradients import head_backward
from ..study.paths import final_logits, raw
from ..study.similarity import nearest
from ..study.solved import fit_softmax, least_squares
from ..study.toy import mlp0, solve

# name -> a function, and a pattern that is found in the lines that matter
SOURCES: dict[str, tuple[Callable[..., Any], str]] = {
    "unembedding": (unembedding, r"return"),
    "unembed": (unembed, r"return"),
    "probabilities": (
        Sampling.probabilities,
        r"/= self\.temp|top_k.*-np\.inf|-self\.top_k|kept = 1|p\[p < last",
    ),
    "raw": (raw, r"return"),
    "asymmetry": (asymmetry, r"norm = |difference = "),
    "nearest": (nearest, r"cosines = "),
    "least_squares": (least_squares, r"return"),
    "fit_softmax": (fit_softmax, r"gradient = |2 \* gradient"),
    "solve": (solve, r"\"(tied|untied|mlp0)\""),
    "mlp0": (mlp0, r"post|wanted"),
    "final_logits": (final_logits, r"final = |return"),
    "attribute": (attribute, r"d = \(d|by_head = |@ d"),
    "attend": (attend, r"scores = |pattern = |return"),
    "embed_backward": (embed_backward, r"d_embed|not tied|dwte\["),
    "head_backward": (head_backward, r"logits = |piece.T"),
    "count_matrices": (count_matrices, r"matrix = |saving = "),
}
KINDS = {tokens.COMMENT: "comment", tokens.STRING: "string", tokens.NUMBER: "number"}


@cache
def source(name: str) -> dict[str, Any]:
    """{"file", "line", "lines"}; each line {"pieces": [[kind, text], ...], "matters": bool}.

    The kind is "comment", "string", "number", "keyword" or "". Docstrings are strings.
    """
    function, pattern = SOURCES[name]
    lines, first = inspect.getsourcelines(function)
    text = textwrap.dedent("".join(lines))
    rows = text.splitlines()
    pieces: list[list[list[str]]] = [[] for _ in rows]
    ends = [0] * len(rows)  # of the pieces of each row
    for found in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = "keyword" if keyword.iskeyword(found.string) else KINDS.get(found.type)
        for row in range(found.start[0] - 1, found.end[0]) if kind else ():
            start = found.start[1] if row == found.start[0] - 1 else 0
            end = found.end[1] if row == found.end[0] - 1 else len(rows[row])
            pieces[row] += [["", rows[row][ends[row] : start]], [kind or "", rows[row][start:end]]]
            ends[row] = end
    for parts, end, line in zip(pieces, ends, rows, strict=True):
        parts.append(["", line[end:]])
    return {
        "file": function.__module__.replace(".", "/") + ".py",
        "line": first,
        "lines": [
            {"pieces": [piece for piece in row if piece[1]], "matters": matters(row, pattern)}
            for row in pieces
        ],
    }


def matters(row: list[list[str]], pattern: str) -> bool:
    """Whether the code of a line, without its comments and without a docstring, has the pattern."""
    code = "".join(text for kind, text in row if kind != "comment")
    is_prose = all(kind == "string" or not text.strip() for kind, text in row)
    return not is_prose and re.search(pattern, code) is not None
