"""The figures of the article, as figures.json has them.

    texts   name -> what the page shows for data-figure="NAME"
    tokens  for each token: how often it occurs in the text, the eight that follow it most often,
            and how often the first three of these do
    words   path, or place in the residual stream -> the likeliest next tokens of the first word,
            each with its probability
    rows    for each frequent token: how many tokens can follow it, by the text and by both tables
    stops   four paths through the tied model, each with a table of scores
    toy     three words: a made-up text, and the arrows of the first picture
    costs   the cost of the tie in toy models, from scripts/tying_results/runs.jsonl
    shares  what the tie saves, as a share of a model
    mlps    how far each path through one MLP is from the bigrams
    knows   what a linear map reads from each table
    pairs   the words of the tables of scores

The text is what weights/shakespeare-bigrams.npz has counted. Numbers are rounded, so that another
processor writes the same file.
"""

from pathlib import Path
from typing import Any

import numpy as np
from tying.described import registered_figures
from tying.differences import Figure, all_figures
from tying.pictures import BARS
from tying.runs import Results, Run
from tying.tables import without_itself
from tying.trainer import entropies

import tiedgpt
from tiedgpt import GPT2, Tokenizer, count_parameters
from tiedgpt.checkpoints.model_names import MODELS, SHIPPED
from tiedgpt.gpt2.ops import softmax
from tiedgpt.gpt2.run import Tape
from tiedgpt.study.bigrams import mlp_numbers, nats_from_bigrams
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.embeddings import knowledge, spearman
from tiedgpt.study.paths import PATHS, asymmetry, final_norm, jsd_floor, matrix_asymmetry, top_k
from tiedgpt.study.predictions import residual_streams

from .pictures import TIMES, decimal, percent, shown
from .rounding import as_in_the_page
from .three_words import three_words

ROOT = Path(__file__).parents[2]
FIRST_WORD = " my"
SHARP, FLAT = " RICHARD", " the"  # examples: few tokens follow the first, many the second
PAIRS = (" my", " lord", " thou", " art", " I", " am", " RICHARD", " III")
LISTS = ("untied.normed", "tied.raw", "tied.normed", "tied.mlp0", "tied.model")  # HEAD.PATH
SHOWN = 3  # tokens in a list
FOLLOWERS = 8  # of each token
MOST_NATS = 4  # the length of a bar of nats
RESAMPLES = 2000
CALCULATOR = {"vocab": 50_000, "dim": 4096, "total": 7e9}  # of the models that people quote
TOTALS = (1e9, 7e9, 70e9)
GPT3 = {"vocab": 50_257, "dim": 12_288, "total": 175e9}
ORDINALS = ("first", "second", "third", "fourth")

# What the text quotes of the runs: its name here, and that of scripts/tying/differences.py, or of
# the registered experiment (verdicts.py, described.py). NAME is the mean with its interval,
# NAME.mean the mean alone.
QUOTED = {
    "cost.w64": "10:1,64,cost",
    "cost.w64-best": "w64-best:cost",
    "cost.longer": "P3:512-1",
    "cost.longer-two-layers": "P3:512-2",
    "cost.parameters": "P1:512-1",
    "cost.parameters-2048": "P1:2048-1",
    "cost.parameters-bits": "bits:narrower:512-1",
    "cost.parameters-2048-bits": "bits:narrower:2048-1",
    "cost.less-deep": "shallower:512-2",
    "cost.parameters-2048-tuned": "2:parameters,2048,half-rate",
    "cost.no-layers": "3:no-layers,cost",
    "cost.attention": "3:attention,cost",
    "cost.mlp": "3:MLP,cost",
    "cost.tenth": "6:tenth",
    "cost.one-rate": "6:one-rate",
    "cost.one-rate-training": "6:one-rate,training",
    "rows.seeds.tied": "w64-0.02:tied:normed.entropy",
    "rows.seeds.untied": "w64-0.02:untied:normed.entropy",
    "init.copy": "5:copy,end",
    "init.zeros": "5:zeros,end",
    "fit.tied": "1:fit-tied",
    "fit.untied": "1:fit-untied",
    "start.tied.first": "w64-0.02:tied:first-loss",
    "start.tied.first-0.2": "w64-0.2:tied:first-loss",
    "loss.tied": "w64-best:tied",
    "loss.untied": "w64-best:untied",
}

Json = dict[str, Any]


def all_parts(results: Results) -> Json:
    """Everything that figures.json holds. results: the lines of runs.jsonl and registered.jsonl."""
    corpus = Corpus.read(ROOT / "weights" / "shakespeare-bigrams.npz")
    tokenizer = tiedgpt.load_tokenizer(SHIPPED[0])
    models = {}
    for name in SHIPPED:
        model = tiedgpt.load_model(name)
        models[model.config.head] = model
    rows, row_texts = rows_of(models, corpus, tokenizer)
    stops, stop_texts = stops_of(models["tied"], corpus, tokenizer)
    toy_part, toy_texts = three_words()
    costs, cost_texts = costs_of(all_figures(results) | registered_figures(results))
    shares, share_texts = shares_of()
    mlps, mlp_texts = mlps_of(models, corpus)
    knows, know_texts = knows_of(models, corpus)
    texts = {
        **text_counts(corpus, tokenizer),
        **marks_of(models, corpus),
        **row_texts,
        **stop_texts,
        **toy_texts,
        **cost_texts,
        **share_texts,
        **pair_of_models(models, corpus),
        **mlp_texts,
        **know_texts,
    }
    return {
        "texts": texts,
        "tokens": tokens_of(corpus),
        "words": words_of(models, corpus, tokenizer),
        "rows": rows,
        "stops": stops,
        "toy": toy_part,
        "costs": costs,
        "shares": shares,
        "mlps": mlps,
        "knows": knows,
        "pairs": PAIRS,
    }


def id_of(token: str, tokenizer: Tokenizer) -> int:
    (token_id,) = tokenizer.encode(token)
    return token_id


def with_interval(figure: Figure, digits: int = 2) -> str:
    """The mean and its 95 % interval."""
    low, high = figure.interval
    if low == high:  # it is no mean over seeds
        return decimal(figure.mean, digits)
    return f"{decimal(figure.mean, digits)} [{decimal(low, digits)}, {decimal(high, digits)}]"


def millions(count: float) -> str:
    return f"{count / 1e6:.1f}M"


def with_digit(share: float) -> str:
    """A share in percent, with one digit: 23.7 %."""
    return f"{100 * share:.1f} %"


# The text


def text_counts(corpus: Corpus, tokenizer: Tokenizer) -> dict[str, str]:
    """What the article says of the text of the corpus."""
    my, lord, sharp = (id_of(token, tokenizer) for token in (" my", " lord", SHARP))
    _, after_sharp = corpus.row(sharp)
    predict_themselves = corpus.self_prediction()
    assert predict_themselves is not None, "the corpus has too few frequent tokens"
    return {
        "vocabulary": f"{corpus.counts.size:,}",
        "text.tokens": f"{corpus.counts.sum():,}",
        "text.frequent": str(corpus.frequent().size),
        "text.my-lord": str(corpus.count(my, lord)),
        "text.lord-my": str(corpus.count(lord, my)),
        "text.sharp": str(after_sharp.size),
        "followers": followers_of_first_word(corpus, tokenizer),
        "toy.vocabulary": str(Run.vocab_size),
        "text.self": percent(predict_themselves),
        "text.floor": decimal(jsd_floor(corpus)),
    }


def followers_of_first_word(corpus: Corpus, tokenizer: Tokenizer) -> str:
    """The sentence that words.js says of the reader's word."""
    first = id_of(FIRST_WORD, tokenizer)
    tokens = tokens_of(corpus)
    most = [
        f"“{shown(tokenizer.token_text(follower))}” ({times})"
        for follower, times in zip(
            tokens["followers"][first][:SHOWN], tokens["times"][first], strict=True
        )
    ]
    return (
        f"In the text “{FIRST_WORD.strip()}” occurs {tokens['counts'][first]:,} times. "
        f"Most often it is followed by {', '.join(most)}."
    )


def tokens_of(corpus: Corpus) -> Json:
    """The part "tokens"."""
    followers, times = [], []
    for token in range(corpus.counts.size):
        successors, counts = corpus.row(token)
        order = np.argsort(-counts, kind="stable")[:FOLLOWERS]
        followers.append(successors[order].tolist())
        times.append(counts[order[:SHOWN]].tolist())
    return {"counts": corpus.counts.tolist(), "followers": followers, "times": times}


# Part 1: what the two tables list


def words_of(models: dict[str, GPT2], corpus: Corpus, tokenizer: Tokenizer) -> Json:
    """The likeliest next tokens after the first word: by LISTS, and along the residual stream.

    Each with its probability, and whether it is one of those that follow most often in the text.
    They are computed with the rounded weights of the page, whose script then finds the same.
    """
    first = id_of(FIRST_WORD, tokenizer)
    followers = tokens_of(corpus)["followers"][first]
    words: Json = {}

    def likeliest(logits: np.ndarray) -> list[tuple[str, float, bool]]:  # [V]
        probabilities = softmax(logits.astype(np.float64))
        return [
            (tokenizer.token_text(token), round(float(probabilities[token]), 5), token in followers)
            for token in top_k(logits, SHOWN).tolist()
        ]

    for name in LISTS:
        head, path = name.split(".")
        (logits,) = PATHS[path](as_in_the_page(models[head]), np.array([first]))  # [V]
        words[name] = likeliest(logits)
    for head, model in models.items():
        # Stop 0 is before the first layer, stop l after layer l.
        for stop, logits in enumerate(stream_of(as_in_the_page(model), first)):
            words[f"{head}.stream.{stop}"] = likeliest(logits)
    return words


def marks_of(models: dict[str, GPT2], corpus: Corpus) -> dict[str, str]:
    """How many of the tokens in a list really follow: the mean over all frequent tokens."""
    frequent = corpus.frequent()
    followers = tokens_of(corpus)["followers"]
    texts = {}
    for head, model in models.items():
        for path in ("normed", "mlp0"):
            marks = []
            for token, logits in zip(frequent, PATHS[path](model, frequent), strict=True):
                marks.append(np.isin(top_k(logits, SHOWN), followers[token]).sum())
            texts[f"marks.{head}.{path}"] = decimal(float(np.mean(marks)), 1)
    return texts


# Part 2: the residual stream


def stream_of(model: GPT2, token: int) -> list[np.ndarray]:
    """The logits [V] if the model ended before its first layer, after it, after the second, ..."""
    tape: Tape = {}
    model(np.array([[token]]), tape=tape)
    return [
        (final_norm(model, stream[0]) @ model.W_U)[0] for stream in residual_streams(tape).values()
    ]


# Part 4: sharp and flat rows


def rows_of(
    models: dict[str, GPT2], corpus: Corpus, tokenizer: Tokenizer
) -> tuple[Json, dict[str, str]]:
    """How many tokens can follow each frequent token: e to the power of the entropy of its row."""
    frequent = corpus.frequent()  # [n]
    counts = corpus.table(frequent, np.arange(corpus.counts.size)).astype(np.float64)  # [n, V]
    of_text = entropies(counts / counts.sum(axis=1, keepdims=True))  # [n]
    flat = id_of(FLAT, tokenizer)
    part: Json = {
        "ids": frequent.tolist(),
        "text": effective_numbers(of_text),
        "sharp": id_of(SHARP, tokenizer),
        "flat": flat,
    }
    texts = {}
    for head, model in models.items():
        logits = PATHS["normed"](model, frequent).astype(np.float64)
        of_table = entropies(softmax(logits))  # [n]
        part[head] = effective_numbers(of_table)
        texts[f"rows.{head}"] = correlation(of_text, of_table)
        if head == "tied":
            # A tied table predicts the token itself. This is the correlation without that token.
            text_others = without_itself(counts, frequent)
            table_others = without_itself(softmax(logits), frequent)
            texts["rows.tied.others"] = correlation(entropies(text_others), entropies(table_others))
    texts["rows.tied.largest"] = decimal(max(part["tied"]), 1)
    texts["rows.text.flat"] = f"{part['text'][part['ids'].index(flat)]:.0f}"
    return part, texts


def effective_numbers(entropy: np.ndarray) -> list[float]:  # [n]
    """So many equally likely tokens would be as uncertain. Three digits."""
    return [float(f"{number:.3g}") for number in np.exp(entropy)]


def correlation(x: np.ndarray, y: np.ndarray) -> str:  # [n], [n]
    """The rank correlation, and the 95 % interval of a bootstrap over tokens."""
    rng = np.random.default_rng(0)
    resampled = []
    for _ in range(RESAMPLES):
        drawn = rng.integers(0, x.size, x.size)
        resampled.append(spearman(x[drawn], y[drawn]) or 0.0)
    low, high = np.quantile(resampled, [0.025, 0.975])
    return f"{decimal(spearman(x, y) or 0.0)} [{decimal(low)}, {decimal(high)}]"


# Part 5: four stops


def stops_of(
    model: GPT2, corpus: Corpus, tokenizer: Tokenizer
) -> tuple[list[Json], dict[str, str]]:
    """For each path through the tied model: asymmetry, self-prediction, nats, a table of scores."""
    frequent = corpus.frequent()
    shown = np.array([id_of(token, tokenizer) for token in PAIRS])
    stops = []
    texts = {}
    for name, path in PATHS.items():
        logits = path(model, frequent)  # [n, V]
        scores = logits[:, frequent].astype(np.float64)  # [n, n]
        texts[f"stop.{name}.asymmetry"] = decimal(matrix_asymmetry(scores))
        texts[f"stop.{name}.self"] = self_prediction(logits, frequent)
        texts[f"stop.{name}.nats"] = decimal(nats_from_bigrams(logits, frequent, corpus))
        stops.append({"path": name, "shades": shades(path(model, shown)[:, shown])})
    # Two rows of logits that are the same after every token. A token that does not occur is in no
    # bigram, so its logit is not used, and may be 0 in place of -inf.
    token_counts = np.log(np.maximum(corpus.counts, 1))
    blind_guess = np.zeros(corpus.counts.size)
    for name, row in (("counts", token_counts), ("guess", blind_guess)):
        logits = np.tile(row, (frequent.size, 1))
        texts[f"stop.{name}.nats"] = decimal(nats_from_bigrams(logits, frequent, corpus))
    return stops, texts


def mlps_of(models: dict[str, GPT2], corpus: Corpus) -> tuple[list[Json], dict[str, str]]:
    """Which MLP makes the bigrams: the control of the third stop."""
    groups = []
    texts = {}
    for head in ("tied", "untied"):
        numbers = mlp_numbers(models[head], corpus)
        assert numbers is not None, f"the {head} model has no layers"
        nats = {"no MLP": numbers["table"]}
        for ordinal, alone in zip(ORDINALS, numbers["alone"], strict=True):
            nats[f"the {ordinal} alone"] = alone
        rows = [bar_of(name, "", x / MOST_NATS, decimal(x)) for name, x in nats.items()]
        groups.append({"kind": head, "title": f"{head.capitalize()}: nats left", "rows": rows})
        texts[f"mlps.{head}.other"] = decimal(numbers["other_alone"] or 0.0)
        texts[f"mlps.{head}.without"] = decimal(numbers["without_first"])
        texts[f"mlps.{head}.model"] = decimal(numbers["model"])
    del texts["mlps.untied.other"]  # the page does not say it
    return groups, texts


def knows_of(models: dict[str, GPT2], corpus: Corpus) -> tuple[list[Json], dict[str, str]]:
    """What a linear map reads from the rows of each table: what follows, and what precedes."""
    groups = []
    controls = []
    for head, title in (("untied", "Untied: two tables"), ("tied", "Tied: one table")):
        tables = knowledge(models[head], corpus)
        assert tables is not None, "the corpus has too few frequent tokens"
        rows = []
        for name in ("W_E", "W_U"):
            for thing, more in (("successors", "what follows"), ("predecessors", "what precedes")):
                if name in tables:
                    r2 = tables[name][thing]["r2"]
                    rows.append(bar_of(f"<code>{name}</code>", more, r2, decimal(r2)))
        groups.append({"kind": head, "title": title, "rows": rows})
        for name in ("random", "counts"):  # the controls, which have no model
            controls += [of_thing["r2"] for of_thing in tables[name].values()]
    return groups, {"knows.control": decimal(max(controls))}


def self_prediction(logits: np.ndarray, tokens: np.ndarray) -> str:  # [n, V], [n]
    """The share of the tokens that have the highest score after themselves."""
    itself = float((logits.argmax(axis=1) == tokens).mean())
    return percent(itself)


def shades(scores: np.ndarray) -> list[list[float]]:  # [n, n]
    """How dark each cell is: the score as a share of the mean of the rows' highest, 0 to 1."""
    dark = scores / scores.max(axis=1).mean()
    # + 0.0 makes a -0.0 positive.
    return [[round(float(share), 2) + 0.0 for share in row] for row in dark.clip(0, 1)]


# Part 6: what the tie costs and saves


def costs_of(figures: dict[str, Figure]) -> tuple[list[Json], dict[str, str]]:
    """The costs of the tie that the picture of scripts/tying_results has, where they are known."""
    costs = []
    for label, at_02, at_best in BARS:
        bar: Json = {"label": label}
        for kind, name in (("0.02", at_02), ("best", at_best)):
            if name in figures:
                figure = figures[name]
                bar[kind] = [round(x, 3) for x in (figure.mean, *figure.interval)]
        has_cost = len(bar) > 1  # it has more than its label
        if has_cost:
            costs.append(bar)
    texts = {name: with_interval(figures[run], 3) for name, run in QUOTED.items()}
    for name, run in QUOTED.items():
        texts[f"{name}.mean"] = decimal(figures[run].mean)
    return costs, texts


def sizes_of(name: str) -> tuple[int, int]:
    """The parameters of a known GPT-2, tied and untied."""
    counts = count_parameters(MODELS[name].config)
    return counts["tied"]["total"], counts["untied"]["total"]


def shares_of() -> tuple[list[Json], dict[str, str]]:
    """The second table as a share of the untied model: the five GPT-2, and three larger models."""
    matrix = CALCULATOR["vocab"] * CALCULATOR["dim"]
    gpt2_models = []
    for name in sorted(MODELS, key=sizes_of):  # from the smallest
        tied, untied = sizes_of(name)
        saved = untied - tied
        both = f"{tied / 1e6:.0f}M + {saved / 1e6:.0f}M"
        gpt2_models.append(bar_of(name, both, saved / untied, with_digit(saved / untied)))
    examples = []
    for total in TOTALS:
        size = f"{total / 1e9:.0f}B"
        examples.append(bar_of("a model of", size, matrix / total, with_digit(matrix / total)))
    table = f"{CALCULATOR['vocab']:,} {TIMES} {CALCULATOR['dim']:,}"
    shares = [
        {
            "kind": "gpt2",
            "title": "A second table as a part of an untied GPT-2",
            "rows": gpt2_models,
        },
        {
            "kind": "example",
            "title": f"A second table of {table} numbers as a part of",
            "rows": examples,
        },
    ]
    return shares, size_texts(matrix)


def size_texts(matrix: float) -> dict[str, str]:
    """What the text says of the sizes of GPT-2, and of a table of `matrix` numbers."""
    tied, untied = sizes_of("gpt2")
    saved = untied - tied
    return {
        "gpt2.tied": millions(tied),
        "gpt2.untied": millions(untied),
        "gpt2.saved": millions(saved),
        "gpt2.of-tied": with_digit(saved / tied),
        "gpt2.of-untied": with_digit(saved / untied),
        "gpt2.tied.exact": f"{tied:,}",
        "gpt2.untied.exact": f"{untied:,}",
        "gpt2.tied.memory": f"{4 * tied / 1e6:.0f} MB",  # a float32 has 4 bytes
        "gpt2.untied.memory": f"{4 * untied / 1e6:.0f} MB",
        "gpt3.saved": millions(GPT3["vocab"] * GPT3["dim"]),
        "gpt3.share": with_digit(GPT3["vocab"] * GPT3["dim"] / GPT3["total"]),
        "gpt2.vocabulary": f"{MODELS['gpt2'].config.vocab_size:,}",
        "gpt2.width": str(MODELS["gpt2"].config.n_embd),
        "calculator.vocab": f"{CALCULATOR['vocab']:,}",
        "calculator.dim": f"{CALCULATOR['dim']:,}",
        "calculator.total": f"{CALCULATOR['total'] / 1e9:.0f}B",
        "calculator.matrix": millions(matrix),
        "calculator.share": with_digit(matrix / CALCULATOR["total"]),
        "calculator.share-if-tied": with_digit(matrix / (CALCULATOR["total"] + matrix)),
    }


def bar_of(name: str, more: str, length: float, text: str) -> Json:
    """A row of pictures.bars. The length is at most 1."""
    return {"name": name, "more": more, "length": round(length, 3), "text": text}


# Part 7: tied and untied, side by side


def pair_of_models(models: dict[str, GPT2], corpus: Corpus) -> dict[str, str]:
    """The path, the bigrams and self-prediction of both shipped models."""
    frequent = corpus.frequent()
    texts = {}
    for head, model in models.items():
        logits = PATHS["normed"](model, frequent)
        texts[f"{head}.asymmetry"] = decimal(asymmetry(model.W_E, model.W_U))
        texts[f"{head}.self"] = self_prediction(logits, frequent)
        texts[f"{head}.nats"] = decimal(nats_from_bigrams(logits, frequent, corpus))
    return texts
