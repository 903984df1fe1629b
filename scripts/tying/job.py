"""One run: train a small model, follow it while it trains, and measure it, all with one thread."""

import json
import math
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from statistics import fmean, median
from time import process_time
from typing import Any

import numpy as np

import tiedgpt
from tiedgpt.checkpoints.files import StagedFiles
from tiedgpt.fast.blas import single_thread
from tiedgpt.inference.evaluation import bits_per_nat, token_losses
from tiedgpt.parameters import unflatten
from tiedgpt.study.bigrams import bigrams
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.direct_path import direct_path
from tiedgpt.study.gradients import batch_gradients
from tiedgpt.study.symmetry import jsd_floor
from tiedgpt.training.loop import Settings, Trainer, checksum
from tiedgpt.training.merges import learn_tokenizer

from .calibrated import calibrated_paths
from .chains import entropy_rate, markov_chain, sample
from .fits import fit_families
from .grid import Plan, Run, config
from .measures import asymmetry_without_means, effective_rank, negative_gains, text_asymmetry

Line = dict[str, Any]
FOLLOWED = (0.0, 0.025, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0)  # shares of the steps
FOLLOWED_TOKENS = 4097  # of the held-out text, for the losses on the way
TRAIN_TOKENS = 16_385  # of the text to train on, for the training loss
CHAIN_TOKENS = 200_000  # to train on; a tenth as many are held out
TIMED_STEPS = 20
TIMINGS = 8


# The texts


@dataclass(frozen=True)
class Data:
    """Tokens to train on and tokens held out."""

    tokens: np.ndarray
    held_out: np.ndarray
    bits: float  # bits per byte for each nat per held-out token; nan for a chain
    chain: np.ndarray | None = None

    @property
    def best_loss(self) -> float:
        """The loss of the chain's own probabilities on the held-out tokens, in nats per token."""
        assert self.chain is not None
        return float(-np.log(self.chain[self.held_out[:-1], self.held_out[1:]]).mean())


def prepare(text: str, vocab_size: int, path: Path) -> list[int]:
    """Learn a vocabulary and write a text as tokens, unless that was done. Returns checksums of the tokens.

    The last tenth is held out, and the vocabulary is learned from the rest.
    """
    key = sha256(text.encode()).hexdigest()
    if not (path.exists() and str(np.load(path)["key"]) == key):
        cut = len(text) * 9 // 10
        tokenizer = learn_tokenizer(text[:cut], vocab_size)
        if tokenizer.vocab_size < vocab_size:
            raise tiedgpt.TiedGPTError(
                f"the text has merges for {tokenizer.vocab_size} tokens only; expected {vocab_size}: give a "
                "longer text"
            )
        parts = [np.array(tokenizer.encode(part), np.int64) for part in (text[:cut], text[cut:])]
        bits = bits_per_nat(tokenizer, parts[1][1:])
        save_arrays(path, key=np.array(key), tokens=parts[0], held_out=parts[1], bits=np.array(bits))
    data = read_data(path)
    return [checksum(data.tokens), checksum(data.held_out)]


def save_arrays(path: Path, **arrays: np.ndarray) -> None:
    with StagedFiles(path.parent) as files:
        np.savez(files.open(path.name), **arrays)  # type: ignore[arg-type]


def read_data(path: Path) -> Data:
    return _read_data(path, path.stat().st_mtime_ns)


def text_corpus(path: Path, vocab_size: int) -> Corpus:
    return _text_corpus(path, vocab_size, path.stat().st_mtime_ns)


@cache
def _read_data(path: Path, _changed: int) -> Data:
    """A Dask worker may live longer than a file, so its time of change is a part of the key."""
    file = np.load(path)
    return Data(file["tokens"], file["held_out"], float(file["bits"]))


@cache
def _text_corpus(path: Path, vocab_size: int, _changed: int) -> Corpus:
    return Corpus.of(read_data(path).tokens, vocab_size)


def data_path(out: Path, vocab_size: int) -> Path:
    return out / "texts" / f"{vocab_size}.npz"


def data_of(run: Run, out: Path) -> Data:
    if run.text == "chain":
        chain = markov_chain(run.vocab_size, run.jsd, np.random.default_rng([run.seed, 2]))
        rng = np.random.default_rng([run.seed, 3])
        tokens, held_out = (sample(chain, n, rng) for n in (CHAIN_TOKENS, CHAIN_TOKENS // 10))
        return Data(tokens, held_out, math.nan, chain)
    data = read_data(data_path(out, run.vocab_size))
    parts = 10 if run.text == "tenth" else 1
    return replace(data, tokens=data.tokens[: len(data.tokens) // parts])


# The model


class PartTrainer(Trainer):
    """A Trainer that leaves the parameters named in `fixed` as they are: their gradient is 0."""

    fixed: tuple[str, ...] = ()

    def _loss_and_gradient(self, pool: ThreadPoolExecutor) -> tuple[float, np.ndarray]:
        loss, gradient = super()._loss_and_gradient(pool)
        views = unflatten(gradient, self.shapes)
        for name in self.fixed:
            views[name][...] = 0
        return loss, gradient


def start(run: Run) -> tuple[tiedgpt.GPT2, tuple[str, ...]]:
    """The initial model of a run, and the names of the parameters that are not trained."""
    model = tiedgpt.GPT2.random(config(run), run.seed)
    fixed: tuple[str, ...] = ()
    if run.off:  # with weights and biases of 0 the sublayer's output is 0; weight decay does not change a 0
        fixed = tuple(name for name in model.parameters if f".{run.off}." in name)
        for name in fixed:
            model.parameters[name][...] = 0
    gains = model.parameters["ln_f.weight"]
    if run.gain == "fixed":
        fixed += ("ln_f.weight",)
    elif run.gain == "signs":
        gains[...] = np.random.default_rng([run.seed, 4]).choice([-1.0, 1.0], gains.size)
    if run.head == "tied":
        return model, fixed
    model = model.untie(run.head, run.seed)
    if run.head == "random":
        model.parameters["lm_head.weight"][...] *= run.std / model.config.initializer_range
    return model, fixed


def loss_of(model: tiedgpt.GPT2, ids: np.ndarray) -> float:
    """Nats per token; every token but the first is predicted once."""
    return float(token_losses(model, ids, model.config.n_ctx - 1).mean())


# The jobs


def do_run(run: Run, out: Path, studied: bool) -> Line:
    """Train and measure one model. If `studied`, also follow it and compare its paths with the bigrams."""
    single_thread()
    data = data_of(run, out)
    model, fixed = start(run)
    settings = Settings(
        steps=run.steps,
        batch=run.batch,
        context=run.context,
        lr=run.lr,
        eval_every=run.steps,
        seed=run.seed,
        threads=1,
    )
    some = data.held_out[:FOLLOWED_TOKENS]
    trainer = PartTrainer(model, data.tokens, some, settings)
    trainer.fixed = fixed
    begin = process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # overflow, if the rate is much too high
            course = list(follow(trainer, studied))
    except tiedgpt.TiedGPTError:  # a loss or gradient that is not finite
        return {"result": {"diverged": 1}, "seconds": process_time() - begin}
    trained = process_time()
    model = trainer.model
    result = {
        "diverged": 0,
        "loss": loss_of(model, data.held_out),
        "train": loss_of(model, data.tokens[:TRAIN_TOKENS]),
        "parameters": int(trainer.flat.size),
        "negative_gains": negative_gains(model)["share"],
    }
    if data.chain is not None:
        result["excess"] = result["loss"] - data.best_loss
        result["entropy_rate"] = entropy_rate(data.chain)
    else:
        result["bits"] = result["loss"] * data.bits
    line: Line = {"result": result, "seconds": trained - begin, "course": course}
    if studied:
        result |= study(model, data, text_corpus(data_path(out, run.vocab_size), run.vocab_size))
        save_arrays(matrices_path(out, run), W_E=model.W_E, W_U=model.W_U)
    return line | {"study_seconds": process_time() - trained}


def follow(trainer: Trainer, studied: bool) -> Iterator[Line]:
    """Train to the end; the state of the model at the shares FOLLOWED of the steps, if it is studied."""
    steps = {round(share * trainer.settings.steps) for share in FOLLOWED} if studied else set()
    losses: list[float] = []
    for record in trainer.run():
        losses += [record["loss"]] if "loss" in record else []
        if record["step"] not in steps:
            continue
        model = trainer.model
        windows = trainer.tokens[: 16 * (trainer.settings.context + 1)].reshape(16, -1)
        yield {
            "step": record["step"],
            "batches": fmean(losses) if losses else None,
            "loss": trainer.evaluate(),
            **batch_gradients(model, windows[:, :-1], windows[:, 1:]).whole(),
            "negative_gains": negative_gains(model)["share"],
            "rank_U": effective_rank(model.W_U),
            "self": direct_path(model)["self_prediction"] or 0.0,
        }
        losses = []


def study(model: tiedgpt.GPT2, data: Data, corpus: Corpus) -> dict[str, Any]:
    """What the instruments of tiedgpt.study say about a trained model."""
    direct = direct_path(model, corpus)
    scores = bigrams(model, corpus, others=calibrated_paths(model, corpus)) or {}
    return {
        "swapped": loss_of(model if model.config.tied else model.tie(), data.held_out),
        "asymmetry": direct["asymmetry"],
        "asymmetry_frequent": asymmetry_without_means(model, corpus.frequent()),
        "self": direct["self_prediction_frequent"],
        "rank_E": effective_rank(model.W_E),
        "rank_U": effective_rank(model.W_U),
        **{
            f"{path}.{name}": of[name]
            for path, of in scores.items()
            for name in ("kl", "top1", "top5", "mrr")
        },
    }


def matrices_path(out: Path, run: Run) -> Path:
    """Where W_E and W_U of a studied run are, for comparisons of two runs."""
    return out / "matrices" / (sha256(json.dumps(asdict(run)).encode()).hexdigest()[:16] + ".npz")


def measure_text(out: Path, plan: Plan) -> Line:
    """What the text itself says: entropies, the floor of a symmetric table, the best fits of each family."""
    single_thread()
    V = plan.small.vocab_size
    data, corpus = read_data(data_path(out, V)), text_corpus(data_path(out, V), V)
    every = np.arange(V)
    pairs = corpus.table(every, every).astype(np.float64)
    shares = pairs / pairs.sum()
    first = shares.sum(axis=1, keepdims=True)
    logs = np.log(np.where(shares > 0, shares / np.where(first > 0, first, 1), 1))
    bigram_entropy = float(-(shares * logs).sum())
    counts = corpus.counts + 1.0  # so that every held-out token has a share
    fits = fit_families(pairs, plan.small.width)
    return {
        "tokens": data.tokens.size,
        "held_out": data.held_out.size,
        "bits_per_nat": data.bits,
        "jsd": jsd_floor(corpus),
        "asymmetry": text_asymmetry(pairs),
        "self": corpus.self_prediction(),
        "bigram_entropy": bigram_entropy,
        "unigram_excess": -sum(p * math.log(p) for p in shares.sum(axis=0) if p > 0) - bigram_entropy,
        "unigram_loss": float(-np.log(counts / counts.sum())[data.held_out].mean()),
        "uniform_loss": math.log(V),
        "fits": fits,
    }


def time_steps(plan: Plan) -> Line:
    """By vocabulary, the ratios of several timings: a training step untied over one tied, in CPU time."""
    single_thread()
    return {"ratios": {str(V): [time_ratio(plan, V) for _ in range(TIMINGS)] for V in plan.vocabularies}}


def time_ratio(plan: Plan, vocab_size: int) -> float:
    """The ratio of the median times of a step of two trainings that take turns."""
    tokens = np.random.default_rng(0).integers(0, vocab_size, 10_000)
    run = replace(plan.small, layers=1, vocab_size=vocab_size, seed=1)
    settings = Settings(
        steps=TIMED_STEPS, batch=run.batch, context=run.context, eval_every=TIMED_STEPS, threads=1
    )
    models = start(run)[0], start(replace(run, head="random"))[0]
    trainings = [Trainer(model, tokens, tokens[: run.context], settings).run() for model in models]
    seconds: list[list[float]] = [[], []]
    for training in trainings:
        next(training)  # the evaluation before the first step
    for _ in range(TIMED_STEPS - 1):
        for training, times in zip(trainings, seconds, strict=True):
            begin = process_time()
            next(training)
            times.append(process_time() - begin)
    tied, untied = (median(times[5:]) for times in seconds)
    return untied / tied
