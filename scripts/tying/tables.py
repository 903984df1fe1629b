"""What the tables of small models know, and which of their MLPs makes the bigrams: over seeds.

The models are final runs of runs.ROWS, trained once more, because runs.jsonl has no weights. Each
is measured over the frequent tokens of its training text:

    TABLE.successors, TABLE.predecessors   R2 of a linear probe (tiedgpt/study/embeddings.py); TABLE
                                           is W_E, W_U, random or counts
    mlps.alone, mlps.without               nats from the bigrams by layer, and of the path normed
    mlps.table, mlps.model                 and the whole model (tiedgpt/study/bigrams.py)
    others.entropy                         the measure normed.entropy (trainer.py), for the next
                                           token if it is another than the token itself
"""

from collections.abc import Iterator

import numpy as np

from tiedgpt import GPT2
from tiedgpt.gpt2.ops import softmax
from tiedgpt.study.bigrams import mlp_numbers
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.embeddings import knowledge
from tiedgpt.study.paths import normed

from .differences import Figure
from .runs import FINAL_SEEDS, HEADS, ROW, Line, Results, Run, best_start, key_of, pilot, start_name
from .trainer import Training, entropies, loss_of, rank_correlation, read_text

WIDTHS = (32, 64, 128)
DEEP = "4-layers"  # of width 64


def models(results: Results) -> dict[tuple[str, str], list[Run]]:
    """The final runs by (name, head); `results` are those of runs.jsonl."""
    rows = {
        (f"w{width}", head): start_name(width, start)
        for width in WIDTHS
        for head in HEADS
        if (start := best_start(width, head, results)) is not None
    }
    rows |= {(DEEP, head): DEEP for head in HEADS}
    runs = {}
    for (name, head), row in rows.items():
        found = pilot(ROW[row], head, results)
        assert found is not None
        runs[name, head] = [found.final(seed) for seed in FINAL_SEEDS]
    return runs


def missing_runs(results: Results, measured: Results) -> Iterator[Run]:
    """The runs without a line in tables.jsonl, one seed after the other."""
    of_heads = models(results).values()
    for runs_of_seed in zip(*of_heads, strict=True):
        for run in runs_of_seed:
            if key_of(run.as_json) not in measured:
                yield run


def do_run(run: Run, text: str) -> Line:
    """Train the model of a run and measure it."""
    data = read_text(text, run.vocab_size)
    training = Training(run)
    for step in range(run.steps):
        training.step(data.tokens, step)
    loss = loss_of(training, data.held_out)  # it fills the model
    return {
        "loss": float(f"{loss:.6g}"),
        **measure(training.model, Corpus.of(data.tokens, run.vocab_size)),
    }


def measure(model: GPT2, corpus: Corpus) -> Line:
    """The measures, with four digits after the point."""
    tables = knowledge(model, corpus)
    mlps = mlp_numbers(model, corpus)
    assert tables is not None
    assert mlps is not None
    line: Line = {}
    for table, things in tables.items():
        for thing, known in things.items():
            line[f"{table}.{thing}"] = round(known["r2"], 4)
    line["mlps.table"] = round(mlps["table"], 4)
    line["mlps.model"] = round(mlps["model"], 4)
    line["mlps.alone"] = [round(nats, 4) for nats in mlps["alone"]]
    line["mlps.without"] = [round(nats, 4) for nats in mlps["without"]]

    tokens = corpus.frequent()
    counts = corpus.table(tokens, np.arange(corpus.counts.size)).astype(np.float64)
    P = softmax(normed(model, tokens).astype(np.float64))
    of_text = entropies(without_itself(counts, tokens))
    of_path = entropies(without_itself(P, tokens))
    line["others.entropy"] = round(rank_correlation(of_path, of_text), 4)
    return line


def without_itself(P: np.ndarray, tokens: np.ndarray) -> np.ndarray:  # [n, V], [n] -> [n, V]
    """The probabilities of the next token if it is another than the token itself."""
    others = P.copy()
    others[np.arange(tokens.size), tokens] = 0
    return others / others.sum(axis=1, keepdims=True)


def table_figures(results: Results, measured: Results) -> dict[str, Figure]:
    """Figures by name, over the seeds that are measured, if they are two or more.

    tables:NAME:HEAD:MEASURE for the measures of a model, such as tables:w64:tied:W_E.successors.
    Of the MLPs there are first-alone, other-alone (the nearest), without-first and without-other
    (the farthest).
    """
    figures = {}
    for (name, head), runs in models(results).items():
        keys = [key_of(run.as_json) for run in runs]
        lines = [with_parts(measured[key]) for key in keys if key in measured]
        if len(lines) < 2:
            continue
        for measure_name in lines[0]:
            values = tuple(float(line[measure_name]) for line in lines)
            figures[f"tables:{name}:{head}:{measure_name}"] = Figure(values)
    return figures


def with_parts(line: Line) -> Line:
    """A line with the lists of its MLPs as numbers."""
    numbers = {name: value for name, value in line.items() if not isinstance(value, list)}
    alone, without = line["mlps.alone"], line["mlps.without"]
    numbers["first-alone"] = alone[0]
    numbers["without-first"] = without[0]
    if len(alone) > 1:
        numbers["other-alone"] = min(alone[1:])
        numbers["without-other"] = max(without[1:])
    return numbers
