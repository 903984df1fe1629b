"""What the page needs at its start: the models, the examples, the source code of functions."""

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from ...gpt2.backward import embed_backward
from ...gpt2.model import GPT2, attend, mlp, unembed, unembedding
from ...gpt2.parameters import count_matrices, parameter_count
from ...sampling import Sampling
from ...study import attribution, gradients, paths, similarity, solved, toy
from .path import symmetry_of
from .query import Query
from .registry import Answer, Turn, view

# The functions whose source code stands beside the pictures. page.html names them.
SHOWN_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    unembedding,
    unembed,
    paths.raw,
    symmetry_of,
    paths.mlp0,
    mlp,
    similarity.nearest,
    solved.fit_softmax,
    Sampling.probabilities,
    toy.solve,
    paths.final_logits,
    attribution.attribute,
    attend,
    gradients.head_backward,
    embed_backward,
    count_matrices,
)


@view("start")
def start(query: Query, turn: Turn) -> Answer:
    """The facts about the models, the example prompts, the three words, and the source code."""
    shown = query.shown
    models = []
    for name, model, by_head in zip(shown.names, shown.models, shown.by_head, strict=True):
        models.append(model_facts(name, model, list(by_head)))
    return {
        "models": models,
        "corpus": shown.corpus_name,
        "prompts": shown.prompts,
        "toy": {"words": toy.WORDS, "W_E": toy.EMBEDDING, "P": toy.TABLE},
        "sources": sources(),
    }


def model_facts(name: str, model: GPT2, heads: list[str]) -> dict[str, Any]:
    """What the page says of a model, with its configuration."""
    facts = {
        "name": name,
        "heads": heads,
        "paths": list(paths.paths_of(model)),
        "parameters": parameter_count(model.config).total,
    }
    facts.update(vars(model.config))
    facts["others"] = None  # fields of config.json that GPT-2 does not use
    return facts


def sources() -> dict[str, dict[str, Any]]:
    """The file, the first line's number and the text of each of SHOWN_FUNCTIONS, by its name."""
    source_by_name = {}
    for function in SHOWN_FUNCTIONS:
        lines, first_line = inspect.getsourcelines(function)
        source_by_name[function.__name__] = {
            "file": function.__module__.replace(".", "/") + ".py",
            "line": first_line,
            "text": textwrap.dedent("".join(lines)).rstrip(),
        }
    return source_by_name
