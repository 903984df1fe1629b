"""Train one small model and measure it.

The head of a run says how the output matrix W_U starts, and whether it is the token embedding W_E:

    tied      W_U = W_E^T
    signs     the same; each gain of ln_f starts at 1 or -1 at random
    untied    W_U is another matrix, and starts at random
    zeros     W_U is another matrix, and starts at 0

W_E is the parameter wte.weight, and W_U^T is lm_head.weight. All layers may have the same weights,
and a token's vector may be multiplied by a scale before the first layer. So the parameters of the
model are copies of the trained parameters, some of them times a factor (`source`). The gradient of
a trained parameter is the sum of the gradients of its copies, times their factors.

A path is a way through the model from one token to scores of the next (tiedgpt/study/paths.py).
"""

import math
import re
import warnings
from dataclasses import dataclass
from functools import cache
from hashlib import sha256

import numpy as np

from tiedgpt import GPT2, Config
from tiedgpt.gpt2.backward import write_gradients
from tiedgpt.gpt2.ops import cross_entropy, softmax
from tiedgpt.gpt2.parameters import unflatten
from tiedgpt.study.bigrams import bigrams
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.paths import matrix_asymmetry, paths_of
from tiedgpt.training.merges import learn_tokenizer
from tiedgpt.training.optimizer import AdamW, clip, learning_rate

from .runs import Line, Run

WARM_UP = 100  # steps, at most a tenth of all steps
BETAS = (0.9, 0.99)
WEIGHT_DECAY = 0.1
CLIP = 1.0
EARLY_TOKENS = 4097  # of the held-out text, for the losses before the end
TRAIN_TOKENS = 16_385  # of the text to train on, for the training loss
NEAREST = 5  # successors or substitutes of a token
TIED_HEADS = ("tied", "signs")
SIGNS_STREAM = 4  # what is drawn at random has a stream of its own
ONCE_STREAM = 5
WINDOWS = 64  # scored at a time


@dataclass(frozen=True)
class Text:
    """A text as tokens. The last tenth is held out; the merges are learned from the rest."""

    tokens: np.ndarray  # to train on
    held_out: np.ndarray


@cache
def read_text(text: str, vocab_size: int) -> Text:
    """The tokens of a text. A worker makes them once for all of its runs."""
    cut = len(text) * 9 // 10
    tokenizer = learn_tokenizer(text[:cut], vocab_size)
    tokens = np.array(tokenizer.encode(text[:cut]), np.int64)
    held_out = np.array(tokenizer.encode(text[cut:]), np.int64)
    return Text(tokens, held_out)


def name_of(text: str) -> str:
    """The name of a text in runs.jsonl: the first twelve digits of its SHA-256."""
    return sha256(text.encode()).hexdigest()[:12]


# ---- Training ----


def config(run: Run) -> Config:
    """The configuration of a run's model, as a tied model."""
    return Config(
        n_ctx=run.context,
        n_embd=run.width,
        n_layer=run.layers,
        n_head=run.heads,
        vocab_size=run.vocab_size,
        bos_token_id=0,
        eos_token_id=0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        attn_pdrop=0.0,
        initializer_range=run.std,
    )


def first_model(run: Run) -> GPT2:
    """The model before its first step."""
    model = GPT2.random(config(run), run.seed)
    if run.head == "untied":
        model = model.untie("random", run.seed)
    if run.head == "zeros":
        model = model.untie("zeros")
    if run.head == "signs":
        rng = np.random.default_rng([run.seed, SIGNS_STREAM])
        gains = model.parameters["ln_f.weight"]
        gains[...] = rng.choice([-1.0, 1.0], gains.size)

    tables = {"W_E": "wte.weight", "W_U": "lm_head.weight"}
    for table, name in tables.items():
        is_chosen = run.only_table in ("", table)
        if run.table > 0 and is_chosen and name in model.parameters:
            model.parameters[name] *= np.float32(run.table / run.std)  # it was drawn with run.std
    return model


class Training:
    """The trained parameters, their gradients, and AdamW.

    Parameters and gradients are views of one vector each. AdamW is in three parts, because W_E and
    W_U may have learning rates of their own. It treats each number alone, so this changes nothing
    else.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.model = first_model(run)
        # The first values of the trained parameters: each of them is its own source.
        first = {
            name: array
            for name, array in self.model.parameters.items()
            if self.source(name)[0] == name
        }
        if run.input_scale != 1 and self.model.config.tied:
            # The input matrix has the scale and the output matrix has not: they are two arrays.
            self.model = self.model.untie("copy")
        self.model_gradients = {
            name: np.empty_like(array) for name, array in self.model.parameters.items()
        }
        shapes = {name: array.shape for name, array in first.items()}
        flat = np.concatenate([array.ravel() for array in first.values()])
        self.parameters = unflatten(flat, shapes)
        self.flat_gradient = np.empty_like(flat)
        self.gradients = unflatten(self.flat_gradient, shapes)

        # Each AdamW with its part of the vectors, and the factor of its learning rate
        self.parts: list[tuple[AdamW, slice, float]] = []
        start = 0
        for names, factor in groups(list(shapes), run):
            group = {name: shapes[name] for name in names}
            end = start + sum(math.prod(shape) for shape in group.values())
            part = slice(start, end)
            self.parts.append((AdamW(flat[part], group, BETAS, WEIGHT_DECAY), part, factor))
            start = end

    def source(self, name: str) -> tuple[str, float]:
        """The trained parameter that a parameter of the model is made of, and the factor."""
        if name == "wte.weight":
            return name, self.run.input_scale
        if name == "lm_head.weight" and self.run.head in TIED_HEADS:
            return "wte.weight", 1.0
        layer = re.match(r"h\.(\d+)\.(.*)", name)
        if layer is None:
            return name, 1.0
        number = int(layer[1])
        same_layers = self.run.layers if self.run.one_block else self.run.same_layers
        if same_layers > 0:  # the last layers have the weights of the first one of them
            number = min(number, self.run.layers - same_layers)
        return f"h.{number}.{layer[2]}", 1.0

    def fill_model(self) -> None:
        """Make the model's parameters from the trained ones."""
        for name, array in self.model.parameters.items():
            source, factor = self.source(name)
            np.multiply(self.parameters[source], np.float32(factor), out=array)

    def fill_gradients(self) -> None:
        """Make the gradients of the trained parameters from those of the model."""
        self.flat_gradient[...] = 0
        for name, gradient in self.model_gradients.items():
            source, factor = self.source(name)
            self.gradients[source] += np.float32(factor) * gradient

    def step(self, tokens: np.ndarray, number: int) -> float:
        """One step, counted from 0: its loss before the step.

        Raises FloatingPointError if a number is not finite.
        """
        run = self.run
        ids, targets = draw(tokens, run, number)
        self.fill_model()
        loss = write_gradients(
            self.model, ids, targets, total=ids.size, gradients=self.model_gradients
        )
        self.fill_gradients()
        norm, scale = clip(self.flat_gradient, CLIP)
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise FloatingPointError
        warm_up = min(WARM_UP, run.steps // 10)
        rate = learning_rate(number, run.steps, run.lr, warm_up)
        for optimizer, part, factor in self.parts:
            optimizer.step(self.flat_gradient[part], rate * factor, scale)
        return loss


def groups(names: list[str], run: Run) -> list[tuple[list[str], float]]:
    """The names of the parameters in their order, in groups, and the factor of each group's rate.

    W_E is the first parameter. In an untied model, W_U is the last.
    """
    if names[-1] == "lm_head.weight":
        return [(names[:1], run.W_E_rate), (names[1:-1], 1.0), (names[-1:], run.W_U_rate)]
    return [(names[:1], run.W_E_rate), (names[1:], 1.0)]


def draw(  # [N] -> [batch, context], [batch, context]
    tokens: np.ndarray, run: Run, step: int
) -> tuple[np.ndarray, np.ndarray]:
    """The sequences of a step, from random places of the text, and the token after each token.

    The places depend on the seed and the step only, so runs of one seed have the same batches.
    """
    if run.once:
        sequences = drawn_once(run.seed, len(tokens), run.context)
        needed = run.steps * run.batch
        if needed > len(sequences):
            raise ValueError(
                f"{run.steps} steps need {needed} sequences, and the text has {len(sequences)}"
            )
        places = sequences[step * run.batch : (step + 1) * run.batch] * run.context
        ids = tokens[places[:, None] + np.arange(run.context + 1)]
        return ids[:, :-1], ids[:, 1:]
    rng = np.random.default_rng([run.seed, step, 0, 0])  # as in tiedgpt/training/loop.py
    starts = rng.integers(0, len(tokens) - run.context, run.batch)
    sequences = tokens[starts[:, None] + np.arange(run.context + 1)]
    return sequences[:, :-1], sequences[:, 1:]


@cache
def drawn_once(seed: int, size: int, context: int) -> np.ndarray:  # [sequences]
    """The sequences of a text of `size` tokens, in a random order.

    They lie one behind the other. Each predicts `context` tokens, the last of which is the first
    token of the next sequence. So each token is predicted once, and is read once.
    """
    return np.random.default_rng([seed, ONCE_STREAM]).permutation((size - 1) // context)


# ---- Measuring ----


def do_run(run: Run, text: str) -> Line:
    """Train a model, and measure it: numbers by name, with six significant digits."""
    try:
        result = measured(run, text)
    except FloatingPointError:
        result = {"diverged": 1}
    return {name: float(f"{value:.6g}") for name, value in result.items()}


def measured(run: Run, text: str) -> Line:
    """Losses of a training, in nats per token, and with run.paths also measures of its paths.

    Raises FloatingPointError if a loss or a gradient is not finite.
    """
    data = read_text(text, run.vocab_size)
    early = data.held_out[:EARLY_TOKENS]
    training = Training(run)
    result: Line = {"first loss": loss_of(training, early)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # overflow, if the rate is much too high
        for step in range(run.steps):
            training.step(data.tokens, step)
            if step + 1 == run.steps // 10:
                result["early loss"] = loss_of(training, early)
        result["loss"] = loss_of(training, data.held_out)
        result["training loss"] = loss_of(training, data.tokens[:TRAIN_TOKENS])
    if not math.isfinite(result["loss"]):
        raise FloatingPointError
    if run.paths:  # loss_of has filled the model
        result |= path_measures(training.model, Corpus.of(data.tokens, run.vocab_size))
    return result


def loss_of(training: Training, ids: np.ndarray) -> float:
    """The mean loss of every token but the first, each predicted once."""
    return float(losses_of(training, ids).mean(dtype=np.float64))


def losses_of(training: Training, ids: np.ndarray) -> np.ndarray:  # [N] -> [N - 1]
    """The loss of every token but the first, each predicted once.

    It is predicted in windows of `context` tokens. A window predicts all of its tokens but the
    first, which is the last of the window before it.
    """
    training.fill_model()
    stride = training.run.context - 1
    losses = []
    whole = (ids.size - 1) // stride  # windows; the last tokens are a shorter window
    starts = np.arange(whole) * stride
    windows = ids[starts[:, None] + np.arange(stride + 1)]
    for first in range(0, whole, WINDOWS):
        losses.append(window_losses(training.model, windows[first : first + WINDOWS]))
    if whole * stride < ids.size - 1:
        losses.append(window_losses(training.model, ids[None, whole * stride :]))
    return np.concatenate(losses)


def window_losses(model: GPT2, windows: np.ndarray) -> np.ndarray:  # [B, T] -> [B (T - 1)]
    logits = model(windows[:, :-1])
    targets = windows[:, 1:]
    return cross_entropy(logits.reshape(targets.size, -1), targets.reshape(-1))


def path_measures(model: GPT2, corpus: Corpus) -> Line:
    """What the paths through the model know of the text, over its frequent tokens.

    The name of a measure is PATH.MEASURE:

    kl           KL(the text's bigrams, the path's probabilities) in nats, the mean over tokens
    top1         the share of tokens whose most probable successor is the text's most common one
    self         the share of tokens that have the highest score after themselves
    asymmetry    |A - A^T| / |A| for the path's scores A
    entropy      the rank correlation, over tokens, of two entropies of the next token: that of the
                 path's probabilities, and that of the text's bigrams
    successors   of the five other tokens with the highest scores, the share that are among the
                 token's five most common successors
    substitutes  the same for its five nearest substitutes, the tokens with the most similar
                 successors
    """
    scores = bigrams(model, corpus)
    assert scores is not None  # it is None only for few frequent tokens
    frequent = corpus.frequent()
    pairs = corpus.table(frequent, frequent)  # [n, n]
    all_pairs = corpus.table(frequent, np.arange(model.config.vocab_size))  # [n, V]
    P = all_pairs / all_pairs.sum(axis=1, keepdims=True)
    # The Bhattacharyya coefficient of two rows of successors is 1 if they are the same.
    likeness = np.sqrt(P) @ np.sqrt(P).T
    successors = nearest(pairs)
    substitutes = nearest(likeness)

    entropy = entropies(P)
    result: Line = {"unigram.kl": scores["unigram"]["kl"]}
    for name, path in paths_of(model).items():
        all_logits = path(model, frequent)  # [n, V]
        logits = all_logits[:, frequent]  # [n, n]
        highest = nearest(logits)
        result |= {
            f"{name}.kl": scores[name]["kl"],
            f"{name}.top1": scores[name]["top1"],
            f"{name}.self": float((all_logits.argmax(axis=1) == frequent).mean()),
            f"{name}.asymmetry": matrix_asymmetry(logits),
            f"{name}.entropy": rank_correlation(entropies(softmax(all_logits)), entropy),
            f"{name}.successors": shared(highest, successors),
            f"{name}.substitutes": shared(highest, substitutes),
        }
    return result


def nearest(scores: np.ndarray) -> np.ndarray:  # [n, n] -> [n, n] bool
    """The NEAREST highest scores of each row, without its own."""
    others = scores.astype(np.float64)
    np.fill_diagonal(others, -np.inf)
    order = np.argsort(-others, axis=1, kind="stable")
    is_nearest = np.zeros(others.shape, bool)
    np.put_along_axis(is_nearest, order[:, :NEAREST], True, axis=1)
    return is_nearest


def shared(first: np.ndarray, second: np.ndarray) -> float:  # [n, n] bool, [n, n] bool
    """The share of the marks of `first` that `second` has too."""
    return float((first & second).sum() / first.sum())


def entropies(P: np.ndarray) -> np.ndarray:  # [n, V] -> [n]
    """The entropy of each row in nats. A probability of 0 adds nothing."""
    P = P.astype(np.float64)
    terms: np.ndarray = P * np.log(np.where(P > 0, P, 1))
    return -terms.sum(axis=1)


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float:  # [n], [n]
    """Spearman's rank correlation."""
    correlations: np.ndarray = np.corrcoef(ranks(x), ranks(y))  # [2, 2]
    return float(correlations[0, 1])


def ranks(x: np.ndarray) -> np.ndarray:  # [n] -> [n]
    """The rank of each number. Equal numbers have the mean of their ranks."""
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)  # the highest rank of each different number
    mean = last - (counts - 1) / 2
    return mean[place]
