"""The panels of the page: what each one asks, and whose source code stands beside it.

A question is a function of a Query that passes on what the library computes. It returns one answer,
or yields several, which the page gets one by one. The module of page/ with a panel's name draws the
panel: `panel("name", query, show)` there draws it with each new answer, and `answer("question",
fields)` asks once. A token is {"id", "token"} as in all reports (study/reports.py).
"""

import base64
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ..errors import ArgumentError, Range
from ..generation import Sampling, sample_tokens
from ..gpt2.backward import embed_backward
from ..gpt2.model import GPT2, attend, mlp, unembed, unembedding
from ..gpt2.parameters import parameter_count
from ..study import (
    bigrams,
    embeddings,
    gradients,
    paths,
    predictions,
    solved,
)
from ..study.reports import (
    lens_report,
    logit_report,
    parameters_report,
    predictions_report,
    token_report,
)
from ..threads import one_blas_thread
from .query import ATTENTION_TOKENS, Query, blas_threads_for

Answer = dict[str, Any]  # what `to_json` of server.py can write
Question = Callable[[Query], Answer | Iterator[Answer]]

LISTED = 14  # the likeliest next tokens
COMPARED = 8  # the likeliest tokens with all parts of the model, and without some
MATRIX_TOKENS = 7  # rows and columns of a matrix of scores, at most
NEAREST = 8  # tokens
LENS_TOKENS = 8  # of the prompt, the last ones
LENS_LIKELIEST = 3  # tokens in a cell of the lens
GRADIENT_TOKENS = 64  # of the prompt, the last ones
GRADIENT_ROWS = 10  # tokens of the prompt, in the table of gradients
ABSENT_ROWS = 4  # tokens that are not in the prompt, in this table
LARGE_VOCABULARY = 1024  # larger ones are measured by a sample of their tokens
SAMPLED_TOKENS = 512


def tokens_of(query: Query, ids: Iterable[int], **columns: np.ndarray) -> list[Answer]:
    """The tokens `ids` [n], each with the numbers that the columns [n] have for it."""
    tokens = []
    for row, token in enumerate(ids):
        numbers = {name: column[row] for name, column in columns.items()}
        tokens.append({**token_report(query.shown.tokenizer, token), **numbers})
    return tokens


def base64_floats(x: np.ndarray) -> str:
    """The bytes of x as little-endian float32 in base64, for arrays that are long as text."""
    return base64.b64encode(x.astype("<f4").tobytes()).decode()


# The start of the page


def start(query: Query) -> Answer:
    """The models, the example prompts, the settings of sampling, the sources."""
    shown = query.shown
    models = []
    for name, by_head in zip(shown.names, shown.by_head, strict=True):
        model = next(iter(by_head.values()))  # the first has its own head
        facts = parameters_report(model.config)["config"]
        facts["name"] = name
        facts["heads"] = list(by_head)
        facts["paths"] = list(paths.paths_of(model))
        facts["parameters"] = parameter_count(model.config).total
        models.append(facts)
    return {
        "models": models,
        "corpus": shown.corpus_name,
        "prompts": shown.prompts,
        "sampling": sampling_controls(),
        "sources": {name: [source_of(f) for f in panel.sources] for name, panel in PANELS.items()},
    }


def sampling_controls() -> list[Answer]:
    """A control of the page for each field of Sampling: its name, numbers, default and help."""
    controls = []
    for setting in fields(Sampling):
        control = {
            "name": setting.name,
            "default": setting.default,
            "help": setting.metadata["help"],
        }
        accepted = setting.metadata.get("accepted")
        if accepted is not None:  # None: a checkbox
            high = accepted.high if np.isfinite(accepted.high) else None
            control.update(min=accepted.low, max=high, whole=accepted.whole)
        controls.append(control)
    return controls


def source_of(function: Callable[..., Any]) -> Answer:
    """The name of a function, its file, the number of its first line, and its text."""
    lines, first_line = inspect.getsourcelines(function)
    return {
        "name": function.__name__,
        "file": function.__module__.replace(".", "/") + ".py",
        "line": first_line,
        "text": textwrap.dedent("".join(lines)).rstrip(),
    }


# The next token


def next_tokens(query: Query) -> Answer:
    """The likeliest next tokens, and what sampling makes of them.

    query.text_ids is the whole text, query.prompt_ids the text up to the token that is chosen.
    """
    tokenizer = query.shown.tokenizer
    logits = query.logits
    probabilities = np.exp(paths.log_probabilities(logits))  # [V], by the model alone
    drawn = query.sampling.probabilities(logits, query.prompt_ids)  # [V], 0 for a dropped token
    rows = []
    for row in predictions_report(tokenizer, logits, paths.top_k(logits, LISTED)):
        rows.append({**row, "drawn": drawn[row["id"]]})

    # A model may have more rows in its matrix than the tokenizer has tokens. The ids of these rows
    # have no text.
    ids_with_text = [token for token in query.text_ids if token in tokenizer.tokens]
    return {
        "text": tokenizer.decode(ids_with_text),
        "tokens": tokens_of(query, query.text_ids),
        "place": len(query.prompt_ids) - 1,
        "rows": rows,
        "kept": np.count_nonzero(drawn),
        "kept_probability": probabilities[drawn > 0].sum(),
    }


def generate(query: Query) -> Iterator[Answer]:
    """Each token with how likely it was, and at last the reason why there are no more.

    The last answer also has the mean surprisal of the tokens. An end-of-text token counts in it,
    but has no answer of its own.
    """
    tokenizer = query.shown.tokenizer
    drawn: list[Answer] = []

    def record(sample_number: int, logits: np.ndarray, token: int) -> None:
        (prediction,) = predictions.predict(logits, [token])
        (row,) = predictions_report(tokenizer, logits, [token])
        drawn.append({**row, "bits": predictions.surprisal(prediction.log_probability)})

    steps = sample_tokens(
        query.model,
        query.prompt_ids,
        max_new_tokens=query.number("n", Range(1, 200)),
        sampling=query.sampling,
        seed=query.number("seed", Range(0, 2**32)),
        record=record,
    )
    return written_tokens(query, steps, drawn)


def written_tokens(
    query: Query, steps: Iterator[list[int]], drawn: list[Answer]
) -> Iterator[Answer]:
    """Each drawn token, and at last the reason why there are no more.

    sample_tokens calls `record` before each step, which appends the token to `drawn`.
    """
    reason = "length"
    with blas_threads_for(query.prompt_ids):
        for (token,) in steps:  # a step draws one token for each sample; there is one sample
            if token in query.model.config.eos_token_ids:
                reason = "end of text"
                break
            yield drawn[-1]
    yield {"end": reason, "bits_per_token": np.mean([token["bits"] for token in drawn])}


# The direct path


def path(query: Query) -> Answer:
    """By one path, the score of each pair of the prompt's tokens; how often the corpus has it."""
    from_the_end = list(dict.fromkeys(reversed(query.prompt_ids)))  # each token once
    tokens = from_the_end[:MATRIX_TOKENS][::-1]  # the last ones, in the order of the prompt
    index = np.array(tokens)
    path_function = query.path  # the one that the page names
    corpus = query.shown.corpus
    # How often the token of a column follows that of a row; the percent are of the row's token.
    text: Answer | None = None
    if corpus is not None:
        text = {"counts": [], "percent": []}
        for first in tokens:
            text["counts"].append([corpus.count(first, second) for second in tokens])
            text["percent"].append([100 * corpus.share(first, second) for second in tokens])
    return {
        "tokens": tokens_of(query, tokens),
        "text": text,
        "A": path_function(query.model, index)[:, index],  # [n, n]
        # The page multiplies a row of W_E with one of W_U: the score under the pointer.
        "W_E": base64_floats(query.model.W_E[index]),
        "W_U": base64_floats(query.model.W_U.T[index]),
    }


def symmetry(query: Query) -> Answer:
    """How symmetric the scores of each path are, and how many tokens predict themselves."""
    tokens = measured_tokens(query.model)
    by_path = {}
    for name, path_to_measure in paths.paths_of(query.model).items():
        by_path[name] = symmetry_of(path_to_measure, query.model, tokens)
    self_prediction = None
    if query.shown.corpus is not None:
        self_prediction = query.shown.corpus.self_prediction()
    return {"paths": by_path, "measured": tokens.size, "text": self_prediction}


def symmetry_of(  # tokens [n]
    path: paths.Path, model: GPT2, tokens: np.ndarray
) -> dict[str, float]:
    """|A - A^T| / |A| of a path's scores A; the share of tokens that score themselves highest."""
    scores = []
    self_predicted = 0
    for piece in paths.split_tokens(tokens, model.config.vocab_size):
        logits = path(model, piece)  # [m, V]
        self_predicted += np.count_nonzero(logits.argmax(axis=1) == piece)
        scores.append(logits[:, tokens].astype(np.float64))
    A = np.concatenate(scores)  # [n, n]
    asymmetry = paths.matrix_asymmetry(A)
    return {"asymmetry": asymmetry, "self_prediction": self_predicted / tokens.size}


def measured_tokens(model: GPT2) -> np.ndarray:  # -> [n]
    """All tokens, or SAMPLED_TOKENS of a large vocabulary, always the same."""
    V = model.config.vocab_size
    if V <= LARGE_VOCABULARY:
        return np.arange(V)
    tokens = np.random.default_rng(0).permutation(V)[:SAMPLED_TOKENS]
    return np.sort(tokens)


def solve(query: Query) -> Answer:
    """What the path normed lacks of the corpus's bigrams, in nats, in three parts.

    A scale of its logits gains the first part, another head the second one, and no head of this
    rank the third one. "missing" is None for a corpus with too few tokens.
    """
    corpus = query.shown.corpus
    if corpus is None:
        raise ArgumentError("there is no text to compare with; start with --corpus FILE")
    solved_paths = solved.solved_paths(query.model, corpus)
    scores = bigrams.bigrams(query.model, corpus, others=solved_paths)
    if scores is None:  # too few tokens
        return {"missing": None}
    return {"missing": solved.missing(scores)}


def nearest(query: Query) -> Answer:
    """The tokens nearest to the prompt's last one by W_E, and by W_U."""
    token = query.prompt_ids[-1]
    answer: Answer = {"token": token_report(query.shown.tokenizer, token)}
    for name, rows in (("W_E", query.model.W_E), ("W_U", query.model.W_U.T)):
        neighbours, cosines = embeddings.nearest(rows, token, NEAREST)
        answer[name] = tokens_of(query, neighbours, cosine=cosines)
    return answer


# What happens inside


def lens(query: Query) -> Answer:
    """What each layer predicts after each of the last tokens."""
    ids = query.prompt_ids
    tokenizer = query.shown.tokenizer
    report = lens_report(
        query.model, tokenizer, ids, k=LENS_LIKELIEST, last=LENS_TOKENS, tape=query.tape
    )
    return {"tokens": tokens_of(query, ids[-LENS_TOKENS:]), **report}


def parts(query: Query) -> Answer:
    """What each head, MLP and bias adds to a token's logit; predictions without some parts."""
    tokenizer = query.shown.tokenizer
    logits = query.logits
    removed = query.removed_parts
    report = logit_report(
        query.model,
        tokenizer,
        query.prompt_ids,
        token=query.fields.get("token"),  # None: the likeliest
        removed=removed,
        logits=logits,
        tape=query.tape,
    )
    likeliest = tokens_of(query, paths.top_k(logits, LISTED))
    answer: Answer = {**report, "likeliest": likeliest}
    if removed:
        edit = predictions.ablation(query.model.config, removed)
        without = predictions.last_logits(query.model, query.prompt_ids, edit)  # [V]
        both = [*paths.top_k(without, COMPARED), *paths.top_k(logits, COMPARED)]
        tokens = list(dict.fromkeys(both))  # each once, those of `without` first
        before = predictions_report(tokenizer, logits, tokens)
        after = predictions_report(tokenizer, without, tokens)
        answer["change"] = []
        for row, changed_row in zip(before, after, strict=True):
            answer["change"].append({**row, "without": changed_row["probability"]})
    return answer


def attention(query: Query) -> Answer:
    """The attention patterns of all heads for the last tokens."""
    layers = query.model.config.n_layer
    if layers == 0:
        raise ArgumentError("this model has no layers, so it has no attention")
    tape = query.tape
    patterns = np.stack([tape[f"attn.{layer}.pattern"][0] for layer in range(layers)])
    return {
        "tokens": tokens_of(query, query.prompt_ids[-ATTENTION_TOKENS:]),
        "patterns": base64_floats(patterns),  # [L, H, T, T]
    }


def gradient(query: Query) -> Answer:
    """The two gradients of one training step on the prompt, by row of wte."""
    ids = query.prompt_ids[-GRADIENT_TOKENS:]
    with one_blas_thread():
        step = gradients.gradients(query.model, ids)
    embed_lengths, head_lengths, _sum_lengths, cosines = step.by_row()  # [V] each

    # The table lists tokens of the prompt, and the absent tokens with the longest gradients.
    # ABSENT_ROWS more are ranked than the prompt has tokens: the longest may all be the prompt's.
    prompt_tokens = list(dict.fromkeys(ids))  # each once
    longest = paths.top_k(head_lengths, ABSENT_ROWS + len(prompt_tokens)).tolist()
    absent = [token for token in longest if token not in prompt_tokens][:ABSENT_ROWS]
    listed = prompt_tokens[-GRADIENT_ROWS:] + absent
    rows = tokens_of(
        query,
        listed,
        embed=embed_lengths[listed],
        head=head_lengths[listed],
        cosine=cosines[listed],
    )
    return {
        "loss": step.loss,
        "rows": rows,
        # How many rows each gradient reaches
        "reached": [np.count_nonzero(embed_lengths), np.count_nonzero(head_lengths)],
        "read": len(ids),
        "absent": len(absent),
        **step.lengths_and_cosine(),
    }


@dataclass(frozen=True)
class Panel:
    """The questions of a panel by the names in its module of page/, and the sources beside it."""

    questions: dict[str, Question]
    sources: tuple[Callable[..., Any], ...]


PANELS = {  # in the order of the page
    "switch": Panel({}, (unembedding, unembed)),
    "path": Panel(
        {"path": path, "symmetry": symmetry, "nearest": nearest, "solve": solve},
        (paths.raw, symmetry_of, paths.mlp0, mlp, embeddings.nearest, solved.fit_softmax),
    ),
    "next": Panel({"next": next_tokens, "generate": generate}, (Sampling.probabilities,)),
    "lens": Panel({"lens": lens}, (paths.final_logits,)),
    "parts": Panel({"parts": parts}, (predictions.attribute,)),
    "attention": Panel({"attention": attention}, (attend,)),
    "gradient": Panel({"gradient": gradient}, (gradients.head_backward, embed_backward)),
}
QUESTIONS: dict[str, Question] = {"start": start}
for panel in PANELS.values():
    QUESTIONS.update(panel.questions)
