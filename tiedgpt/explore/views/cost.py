"""What the second matrix costs."""

from typing import Any

from ...checkpoints.places import MODELS
from ...gpt2.parameters import count_matrices, parameter_count
from .query import Query
from .registry import Answer, Turn, view


@view("cost")
def cost(query: Query, turn: Turn) -> Answer:
    """The size of the model that the reader asks about, and of the five GPT-2."""
    vocab = query.size("vocab")
    dim = query.size("dim")
    total = query.size("total")
    models = []
    for name, known_model in MODELS.items():
        config = known_model.config
        tied_total = parameter_count(config.with_head("tied")).total
        models.append({"name": name, **sizes(config.vocab_size, config.n_embd, tied_total)})
    # A model has at least the parameters of its embedding.
    tied_total = max(total, vocab * dim)
    return {**sizes(vocab, dim, tied_total), "models": models}


def sizes(vocab: int, dim: int, tied_total: int) -> dict[str, Any]:
    """The parameters of a model with either head. The saving is in percent of the untied model."""
    matrix = count_matrices(vocab, dim)["difference"]  # the parameters of the second matrix
    untied_total = tied_total + matrix
    return {
        "tied": tied_total,
        "untied": untied_total,
        "saved_percent": 100 * matrix / untied_total,
    }
