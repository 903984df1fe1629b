"""Measurements of what tying does to a model. Each module computes one kind of number.

    corpus.py        count which token follows which in a text
    paths.py         four ways from one token to logits, from W_E W_U alone to the whole model
    direct_path.py   A = W_E W_U: is it symmetric, does a token predict itself?
    bigrams.py       compare each path with the bigram counts of a text
    similarity.py    do two embeddings agree on which tokens are similar? rank correlation
    solved.py        the output matrix that fits a corpus best: the price of the tie, and of the rank
    toy.py           tying with three words, in matrices that fit on a page
    symmetry.py      the least loss of a symmetric A on a text; the asymmetry of the text; A without diagonal
    fits.py          the best A of rank D: tied, symmetric of either sign, untied
    calibrated.py    what each path adds to the token counts, after one fitted scale
    chains.py        Markov chains of a chosen asymmetry
    dynamics.py      numbers to follow in training: gradients of wte, signs of ln_f, rank of the head
    gradients.py     the two gradients of a tied embedding, apart
    swap.py          the loss of an untied model with its own head and with the tied head
    lens.py          the next token that each layer's residual stream predicts
    predictions.py   probability and rank of a token, after a prompt and at each place of a text
    report.py        all of these for one model
    readings.py      what the numbers of a report are called, and how to read them
    attribution.py   which heads, MLPs and biases a logit comes from; the model without some of them

Letters as in model.py: V vocabulary, D width, W_E [V, D], W_U [D, V]; n tokens, P distinct pairs.
"""

from typing import Any


def look_up(report: dict[str, Any], path: str) -> Any:
    """A value of a nested report by its dotted path; None if a key on the way is missing.

    >>> look_up({"loss": {"own": 1.5}, "bigrams": None}, "loss.own")
    1.5
    """
    value: Any = report
    for key in path.split("."):
        value = value.get(key) if value else None
    return value
