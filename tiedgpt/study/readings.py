"""The rows of a report for people: what each number is called, and how to read it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .calibrated import OFF_DIAGONAL_PARTS
from .calibrated import PARTS as CALIBRATED_PARTS
from .corpus import MIN_COUNT
from .fits import FAMILIES
from .paths import PATH_PARTS
from .solved import PARTS

PERCENT, DECIMALS = (lambda x: f"{100 * x:.1f} %"), "{:.3f}".format


@dataclass(frozen=True)
class Group:
    """Rows of the report that belong together."""

    heading: str
    rows: dict[str, str]  # a row's place in the JSON -> its label
    reading: str  # how to read the numbers
    form: Callable[[float], str] = DECIMALS  # of numbers that are not counts
    notes: dict[str, str] = field(default_factory=dict)  # a row's place -> how to read it, if it is there

    def cell(self, value: Any) -> str:
        if value is None or isinstance(value, str):
            return value or "-"
        return f"{value:,}" if isinstance(value, int) else self.form(value)


def path_rows(measure: str) -> dict[str, str]:
    off_diagonal = OFF_DIAGONAL_PARTS if measure.startswith("top") else {}
    paths = {"unigram": "token counts, no model", **PATH_PARTS, **off_diagonal, **PARTS}
    if measure != "kl":
        del paths["scaled"]  # a factor does not change the order
    return {f"bigrams.{path}.{measure}": f"{path}: {parts}" for path, parts in paths.items()}


def calibrated_rows(measure: str) -> dict[str, str]:
    paths = CALIBRATED_PARTS.items()
    return {f"bigrams.{path}.{measure}": f"{path.removesuffix('+unigram')}: {parts}" for path, parts in paths}


GROUPS = (
    Group(
        "Output head and size",
        {"head": "Output head", "parameters": "Parameters", "bytes": "Bytes in float32"},
        "An untied model stores one matrix more: W_U, as large as the token embedding W_E.",
    ),
    Group(
        "Corpus",
        {"corpus.tokens": "Tokens", "corpus.frequent": "Frequent tokens"},
        f"A token is frequent if it occurs at least {MIN_COUNT} times. Rows about frequent tokens are "
        "averages over these, each counted once.",
    ),
    Group(
        "Is A = W_E W_U symmetric?",
        {
            "direct_path.asymmetry": "|A - A^T| / |A|, all tokens",
            "direct_path.asymmetry_frequent": "Frequent tokens, without means",
            "corpus.asymmetry": "The corpus's log counts",
        },
        "A[s, t] is the score that token s by itself, without any layer, gives to t as the next token. 0: "
        '"York" after "New" scores the same as "New" after "York", as in every tied model. 1.414: the two '
        "scores are unrelated, or depend on t only.",
        notes={
            "direct_path.asymmetry_frequent": "Without means: less what depends on s only or on t only.",
            "corpus.asymmetry": "The log counts of the corpus's own pairs are without means too.",
        },
    ),
    Group(
        "What does a symmetric A cost on this corpus?",
        {
            "corpus.jsd_floor": "Any symmetric A, at least",
            **{f"fits.{family}.kl": label for family, label in FAMILIES.items()},
        },
        "Nats per token above a table of the corpus's pairs, for the best A of each form, without any model. "
        "The first row is the Jensen-Shannon divergence of the pairs and their reverse, which no symmetric A "
        "comes below, at most 0.693.",
        notes={
            "fits.tied.kl": "Other rows are the best fits of this model's width that were found. ln_f(W_E) "
            "W_E^T is a tied GPT-2 without layers. It can be lower, because ln_f is not symmetric."
        },
    ),
    Group(
        "Does a token predict itself?",
        {
            "direct_path.self_prediction": "All tokens, by A",
            "direct_path.self_prediction_frequent": "Frequent tokens, by A",
            "corpus.self_prediction": "Frequent tokens, in the corpus",
        },
        "The share of tokens whose best next token by A is the same token.",
        PERCENT,
        {"corpus.self_prediction": "In the corpus: whose most common next token is the same token."},
    ),
    Group(
        "Next token from one token: is the most common one found?",
        path_rows("top1"),
        "The share of frequent tokens for which the likeliest next token is the corpus's most common one. "
        "Each row uses a part of the model to turn one token into scores for the next; ln_f is the final "
        "layer norm.",
        PERCENT,
    ),
    Group(
        "Next token from one token: are the five most common ones found?",
        path_rows("top5"),
        "Of the corpus's five most common next tokens, the share that are among the five likeliest.",
        PERCENT,
    ),
    Group(
        "Next token from one token: how far from the corpus's probabilities?",
        path_rows("kl"),
        "KL divergence in nats; 0: the same probabilities. It depends on the scale of the scores. raw has no "
        "layer norm, so its scale has no meaning; a high value of normed can come from the scale alone.",
    ),
    Group(
        "What does one token's path add to the token counts? KL divergence",
        {"bigrams.unigram.kl": "token counts, no model"} | calibrated_rows("kl"),
        "Nats, after one scale of the scores and one of the log counts, which are fitted to the other half "
        "of the frequent tokens. A path that is no lower than the counts adds nothing to them.",
    ),
    Group(
        "What does one token's path add to the token counts? Mean reciprocal rank",
        {"bigrams.unigram.mrr": "token counts, no model"} | calibrated_rows("mrr"),
        "The mean of 1 / rank of the next token in the corpus; 1: always the likeliest.",
    ),
    Group(
        "What does normed miss?",
        {
            "missing.scale": "The scale: scaled is better",
            "missing.head": "The head: solved is better",
            "missing.rank": "The rank: missed by solved too",
        },
        "Three parts of the KL divergence of normed, in nats. In a tied model, the head is the price of the "
        "tie: what a free W_U would gain on these tokens with this W_E. The rank is what no W_U of this "
        "width gains. The best W_U is fitted to the corpus that it is measured on.",
    ),
    Group(
        "Next token from one token: in the corpus's order?",
        path_rows("spearman"),
        "Rank correlation of the scores with the counts, over the tokens that follow in the corpus. 1: the "
        "same order; 0: unrelated.",
    ),
    Group(
        "Do two matrices agree on which tokens are similar?",
        {
            "embeddings.in_out": "W_E and W_U of this model",
            "embeddings.in_tied": "W_E and the tied model's W_E",
            "embeddings.out_tied": "W_U and the tied model's W_E",
            "embeddings.tokens": "Tokens compared",
        },
        "Rank correlation of the cosine similarities of all pairs of tokens. 1: the same order of pairs; 0: "
        "unrelated.",
        notes={"embeddings.in_tied": "The tied model is the first tied one that has the same vocabulary."},
    ),
    Group(
        "Do frequent tokens have long vectors?",
        {
            "embeddings.in_norm_frequency": "Rows of W_E",
            "embeddings.out_norm_frequency": "Columns of W_U",
        },
        "Rank correlation of a vector's length with its token's count, over the tokens of the corpus. 1: the "
        "more frequent, the longer; -1: the more frequent, the shorter.",
    ),
    Group(
        "The output head in numbers",
        {
            "negative_gains.count": "Gains of ln_f below 0",
            "effective_rank.W_E": "Effective rank of W_E",
            "effective_rank.W_U": "Effective rank of W_U",
            "gradients.embed": "Gradient of W_E: tokens read",
            "gradients.head": "Gradient of W_U: all scores",
            "gradients.cosine": "Cosine of the two",
        },
        "A gain below 0 lets W_E G W_E^T score a token's own vector low. Effective rank: e to the entropy of "
        "the singular values.",
        notes={
            "gradients.embed": "Gradients: norms for the corpus's last tokens; a tied model adds the two."
        },
    ),
    Group(
        "Can the embedding replace the head of an untied model?",
        {
            "loss.own": "Loss with the model's own head",
            "loss.swapped": "Loss with x @ wte.T as the head",
            "loss.tokens": "Tokens predicted",
        },
        "Nats per token at the end of the corpus. A model that was trained on these tokens predicts them "
        "better; `tiedgpt train` holds out the last tenth of its text.",
    ),
)
