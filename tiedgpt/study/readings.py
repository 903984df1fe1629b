"""The rows of a report for people: what each number is called, and what to see in it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .corpus import MIN_COUNT
from .paths import PATH_PARTS

PERCENT, DECIMALS = (lambda x: f"{100 * x:.1f} %"), "{:.3f}".format


@dataclass(frozen=True)
class Group:
    """Rows of the report that answer one question."""

    heading: str
    rows: dict[str, str]  # a row's place in the JSON -> its label
    reading: str  # what to see, whichever of the rows are printed
    form: Callable[[float], str] = DECIMALS  # of numbers that are not counts

    def cell(self, value: Any) -> str:
        if value is None or isinstance(value, str):
            return value or "-"
        return f"{value:,}" if isinstance(value, int) else self.form(value)


FIRST_ROWS = {
    "head": "Output head",
    "parameters": "Parameters",
    "corpus.frequent": f"Frequent tokens: {MIN_COUNT} times or more",
}
GROUPS = (
    Group(
        "Is A = W_E W_U symmetric?",
        {
            "direct_path.asymmetry": "|A - A^T| / |A|",
            "corpus.jsd_floor": "Nats that a symmetric A costs, at least",
        },
        '0: "York New" has the score of "New York"; 1.414: the two are unrelated.',
    ),
    Group(
        "Does a token predict itself?",
        {
            "direct_path.self_prediction": "All tokens, by A",
            "direct_path.self_prediction_frequent": "Frequent tokens, by A",
            "corpus.self_prediction": "Frequent tokens, in the corpus",
        },
        "The share of tokens whose likeliest next token is the token itself.",
        PERCENT,
    ),
    Group(
        "Is the corpus's most common next token found, from one token?",
        {
            "bigrams.unigram.top1": "token counts, no model",
            **{f"bigrams.{path}.top1": f"{path}: {PATH_PARTS[path]}" for path in ("normed", "mlp0", "model")},
        },
        "The share of frequent tokens whose likeliest next token is the corpus's.",
        PERCENT,
    ),
    Group(
        "What would a free head gain?",
        {
            "missing.scale": "scale: gained by one factor",
            "missing.head": "head: gained by the best W_U",
            "missing.rank": "rank: out of reach of any W_U",
        },
        "Parts of normed's KL divergence, in nats; the head is the price of a tie.",
    ),
    Group(
        "Do the matrices agree on which tokens are similar?",
        {
            "embeddings.in_out": "W_E and W_U",
            "embeddings.in_tied": "W_E and the tied model's W_E",
            "embeddings.out_tied": "W_U and the tied model's W_E",
        },
        "Rank correlation of the cosines of all pairs of tokens; 1: the same order.",
    ),
    Group(
        "Can W_E^T replace W_U?",
        {
            "loss.own": "Loss with the model's own head",
            "loss.swapped": "Loss with x @ wte.T as the head",
            "loss.uniform": "Loss of a uniform guess",
        },
        "Nats per token at the end of the corpus; training on it lowers the loss.",
    ),
)


def look_up(report: dict[str, Any], path: str) -> Any:
    """A value of a nested report by its dotted path; None if a key on the way is missing.

    >>> look_up({"loss": {"own": 1.5}, "bigrams": None}, "loss.own")
    1.5
    """
    value: Any = report
    for key in path.split("."):
        value = value.get(key) if value else None
    return value
