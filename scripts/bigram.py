"""The debate about the tie in one file: can one matrix, used twice, count pairs of words?

    python scripts/bigram.py                                  # about 15 seconds
    python scripts/bigram.py --text FILE --dim 32 --seed 1

Without its layers, GPT-2 is a table A of scores: A[i, j] says how well token j follows token i. The
best table is A[i, j] = log P(j after i), the bigrams of the text. Four forms of A are trained here,
each on the bigrams of Shakespeare's plays, or on those of FILE:

    W_E W_E^T                 tied; A is symmetric, so "my lord" and "lord my" have the same score
    ln_f(W_E) W_E^T           tied, with the layer norm that GPT-2 has before its output matrix
    (W_E + MLP(W_E)) W_E^T    tied, with an MLP as in GPT-2's first block
    W_E W_U                   untied

The file reads from top to bottom: the bigrams, the four forms with their gradients, the training,
what is measured, the tables. Read scripts/tied.py first, which has the parts of GPT-2.

Shapes: V tokens that occur in the text, D numbers for each of them, F = 4 D numbers inside the MLP.
"""

import argparse
import math
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

if __name__ == "__main__":
    # For matrices as small as these, several threads wait for each other more than they compute.
    # NumPy reads this when it is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tied import decode, encode, gelu, layer_norm, read_json, read_merges, softmax

WEIGHTS = Path(__file__).resolve().parents[1] / "weights"

# ---- The bigrams ----


def read_counts(path):  # -> [all tokens, all tokens]: how often does token j follow token i?
    """Read the counts that come with the package, in which the pairs are sorted by first token."""
    with np.load(path) as file:
        starts = file["arr_1"].astype(int)  # where the pairs of each first token begin
        seconds = file["arr_2"]
        pair_counts = file["arr_3"]
    size = len(starts) - 1
    counts = np.zeros((size, size))
    for i in range(size):
        part = slice(starts[i], starts[i + 1])
        counts[i, seconds[part]] = pair_counts[part]
    return counts


def count_pairs(ids, size):  # -> [size, size]: how often does token j follow token i?
    counts = np.zeros((size, size))
    for i, j in pairwise(ids):
        counts[i, j] += 1
    return counts


def read_bigrams(text_path):  # -> counts of pairs [V, V], the V tokens as text
    """Count the pairs of neighbours in a file of text, or, for None, in Shakespeare's plays."""
    folder = WEIGHTS / "shakespeare-tied"
    vocabulary = read_json(folder / "vocab.json")
    if text_path is None:
        counts = read_counts(WEIGHTS / "shakespeare-bigrams.npz")
    else:
        text = text_path.read_text(encoding="utf-8")
        ids = encode(text, vocabulary, read_merges(folder / "merges.txt"))
        counts = count_pairs(ids, len(vocabulary))
    if counts.sum() == 0:
        raise ValueError(f"{text_path} has fewer than two tokens")

    # Nothing can be learned about the tokens that do not occur, so they are left out.
    present = np.flatnonzero(counts.sum(axis=0) + counts.sum(axis=1))
    counts = counts[present][:, present]
    texts = [decode([token], vocabulary) for token in present]
    return counts, texts


# ---- The four forms: how each begins, its scores, and the gradients of its weights ----
# dscores [V, V] is the gradient of the loss with respect to the scores, dx that with respect to x.


def random_matrix(rows, columns, rng):
    return rng.normal(0, 0.1, (rows, columns))


def start_tied(V, D, rng):
    return {"W_E": random_matrix(V, D, rng)}


def tied_scores(W_E):  # -> [V, V]
    return W_E @ W_E.T


def tied_gradients(dscores, W_E):
    d_embedding = dscores @ W_E  # the gradient of W_E where it is the embedding
    d_output = dscores.T @ W_E  # the gradient of W_E where it is the output matrix
    return {"W_E": d_embedding + d_output}  # one matrix gets the sum of the two


def start_ln_f(V, D, rng):
    return {"W_E": random_matrix(V, D, rng), "weight": np.ones(D), "bias": np.zeros(D)}


def ln_f_scores(W_E, weight, bias):  # -> [V, V]
    x = layer_norm(W_E, weight, bias)
    return x @ W_E.T


def ln_f_gradients(dscores, W_E, weight, bias):
    x = layer_norm(W_E, weight, bias)
    dx = dscores @ W_E
    d_output = dscores.T @ x

    # x is normed * weight + bias, and normed is (W_E - mean) / deviation.
    mean = W_E.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(W_E.var(axis=-1, keepdims=True) + 1e-5)  # 1e-5 as in layer_norm
    normed = (W_E - mean) / deviation
    dnormed = dx * weight

    # A number of W_E also changes the mean and the deviation of its row: two parts are subtracted.
    mean_part = dnormed.mean(axis=-1, keepdims=True)
    deviation_part = normed * (dnormed * normed).mean(axis=-1, keepdims=True)
    d_embedding = (dnormed - mean_part - deviation_part) / deviation
    return {
        "W_E": d_embedding + d_output,
        "weight": (dx * normed).sum(axis=0),
        "bias": dx.sum(axis=0),
    }


def start_mlp(V, D, rng):
    F = 4 * D
    return {
        "W_E": random_matrix(V, D, rng),
        "W_fc": random_matrix(D, F, rng),
        "b_fc": np.zeros(F),
        "W_proj": random_matrix(F, D, rng),
        "b_proj": np.zeros(D),
    }


def mlp_scores(W_E, W_fc, b_fc, W_proj, b_proj):  # -> [V, V]
    hidden = gelu(W_E @ W_fc + b_fc)  # [V, F]
    x = W_E + hidden @ W_proj + b_proj
    return x @ W_E.T


def gelu_slope(x):  # the derivative of gelu
    # gelu(x) is x * gate, where gate is (1 + tanh(u)) / 2.
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    u_slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
    gate = (1 + np.tanh(u)) / 2
    gate_slope = (1 - np.tanh(u) ** 2) / 2 * u_slope
    return gate + x * gate_slope


def mlp_gradients(dscores, W_E, W_fc, b_fc, W_proj, b_proj):
    before_gelu = W_E @ W_fc + b_fc
    hidden = gelu(before_gelu)
    x = W_E + hidden @ W_proj + b_proj
    dx = dscores @ W_E
    d_output = dscores.T @ x

    # The first W_E reaches x directly, and through the MLP.
    dhidden = dx @ W_proj.T
    dbefore_gelu = dhidden * gelu_slope(before_gelu)
    d_embedding = dx + dbefore_gelu @ W_fc.T
    return {
        "W_E": d_embedding + d_output,
        "W_fc": W_E.T @ dbefore_gelu,
        "b_fc": dbefore_gelu.sum(axis=0),
        "W_proj": hidden.T @ dx,
        "b_proj": dx.sum(axis=0),
    }


def start_untied(V, D, rng):
    return {"W_E": random_matrix(V, D, rng), "W_U": random_matrix(D, V, rng)}


def untied_scores(W_E, W_U):  # -> [V, V]
    return W_E @ W_U


def untied_gradients(dscores, W_E, W_U):
    d_embedding = dscores @ W_U.T
    d_output = W_E.T @ dscores
    return {"W_E": d_embedding, "W_U": d_output}  # each matrix gets its own


@dataclass
class Form:
    name: str
    start: Callable
    scores: Callable
    gradients: Callable


FORMS = [
    Form("W_E W_E^T", start_tied, tied_scores, tied_gradients),
    Form("ln_f(W_E) W_E^T", start_ln_f, ln_f_scores, ln_f_gradients),
    Form("(W_E + MLP(W_E)) W_E^T", start_mlp, mlp_scores, mlp_gradients),
    Form("W_E W_U", start_untied, untied_scores, untied_gradients),
]


# ---- The training ----

STEPS = 250
FIRST_RATE = 0.06  # the learning rate falls from here to 0


def log_softmax(x):  # [V, V] -> [V, V]
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def loss(pairs, scores):  # pairs [V, V]: the share of each pair in the text
    """The cross entropy of the text in nats per token, when each token is predicted by scores."""
    return -(pairs * log_softmax(scores)).sum()


def loss_gradient(pairs, scores):  # -> [V, V]
    share_of_first = pairs.sum(axis=1, keepdims=True)
    return share_of_first * softmax(scores) - pairs


def train(form, pairs, D, seed):  # -> the weights
    """Adam [Kingma & Ba 2015], with means over about the last ten steps."""
    rng = np.random.default_rng(seed)
    weights = form.start(len(pairs), D, rng)
    mean_gradients = {name: np.zeros_like(weight) for name, weight in weights.items()}
    mean_squares = {name: np.zeros_like(weight) for name, weight in weights.items()}
    for step in range(STEPS):
        dscores = loss_gradient(pairs, form.scores(**weights))
        gradients = form.gradients(dscores, **weights)
        rate = FIRST_RATE * (1 - step / STEPS)
        for name, gradient in gradients.items():
            mean_gradients[name] += 0.1 * (gradient - mean_gradients[name])
            mean_squares[name] += 0.1 * (gradient**2 - mean_squares[name])
            # Both means began at 0, so they are too small by this factor.
            factor = 1 - 0.9 ** (step + 1)
            mean = mean_gradients[name] / factor
            square = mean_squares[name] / factor
            weights[name] -= rate * mean / (np.sqrt(square) + 1e-12)
    return weights


# ---- What is measured ----


def asymmetry(scores):  # 0 for a symmetric table, about 1.4 for random numbers
    return np.linalg.norm(scores - scores.T) / np.linalg.norm(scores)


def share_of_itself(table):  # the share of the tokens whose row is largest at the token itself
    return (table.argmax(axis=1) == np.arange(len(table))).mean()


def conditional(pairs):  # -> [V, V]: the probability of token j after token i, in the text
    first = pairs.sum(axis=1, keepdims=True)
    return pairs / np.where(first > 0, first, 1)  # the last token may have no successor


def bigram_loss(pairs):
    """The loss of the bigrams themselves. No table has a lower one."""
    occurs = pairs > 0
    return -(pairs[occurs] * np.log(conditional(pairs)[occurs])).sum()


def count_loss(pairs):
    """The loss if every token is predicted by its share of the text, whatever came before."""
    shares = pairs.sum(axis=0)
    occurs = shares > 0
    return -(shares[occurs] * np.log(shares[occurs])).sum()


def one_sided_pairs(pairs, words):  # words [V]: which tokens are words -> up to four (i, j)
    """The pairs of words that are more frequent than their reverse by most. No word comes twice."""
    excess = pairs - pairs.T
    excess[~words] = 0
    excess[:, ~words] = 0
    chosen = []
    while len(chosen) < 4 and excess.max() > 0:
        i, j = np.unravel_index(excess.argmax(), excess.shape)
        chosen.append((i, j))
        for word in (i, j):
            excess[word] = 0
            excess[:, word] = 0
    return chosen


# ---- The tables ----

WHAT_TO_SEE = """
What to see in the bigrams of Shakespeare's plays, with 64 numbers for each token:

- W_E W_E^T has the same score for a pair and its reverse. The two probabilities differ only
  because softmax makes each row of the table add up to 1.
- Its score of a token after itself is a sum of squares, which is never negative. So three of four
  tokens predict themselves, and in the text hardly any token follows itself.
- A layer norm or an MLP between the two uses of W_E breaks the symmetry, and most of what the tie
  costs is gone.
- W_E W_U is nearest to the bigrams, with twice as many numbers as W_E W_E^T.
- On the page about tying (scripts/tying_results/README.md) the tie costs less, because its models
  have ln_f, and because their loss is that of text that they were not trained on."""


def print_row(name, loss, asymmetry, itself, numbers):
    print(f"{name:<24}{loss:>14}{asymmetry:>12}{itself:>21}{numbers:>10}", flush=True)


def print_losses(pairs, D, seed):  # -> {name of a form: its scores [V, V]}
    """Train the four forms, and print what each has learned."""
    print_row("", "nats per token", "asymmetry", "predict themselves", "numbers")
    V = len(pairs)
    print_row(
        "the bigrams themselves",
        loss=f"{bigram_loss(pairs):.2f}",
        asymmetry="",
        itself=f"{share_of_itself(pairs):.0%}",
        numbers=f"{np.count_nonzero(pairs):,}",
    )
    # By the token counts, the same token is the likeliest after each of the V tokens. So one token,
    # this one, predicts itself.
    print_row(
        "the token counts",
        loss=f"{count_loss(pairs):.2f}",
        asymmetry="",
        itself=f"{1 / V:.0%}",
        numbers=f"{V:,}",
    )
    scores_of_forms = {}
    for form in FORMS:
        weights = train(form, pairs, D=D, seed=seed)
        scores = form.scores(**weights)
        numbers = sum(weight.size for weight in weights.values())
        print_row(
            form.name,
            loss=f"{loss(pairs, scores):.2f}",
            asymmetry=f"{asymmetry(scores):.2f}",
            itself=f"{share_of_itself(scores):.0%}",
            numbers=f"{numbers:,}",
        )
        scores_of_forms[form.name] = scores
    return scores_of_forms


def print_pairs(scores_of_forms, pairs, texts):
    """Print the scores of pairs and their reverses, with the probability of the second word."""
    is_word = np.array([text.startswith(" ") and text[1:].isalpha() for text in texts])
    in_the_text = conditional(pairs)
    print("\nScores, with the probability of the second word after the first:")
    for i, j in one_sided_pairs(pairs, is_word):
        pair = (texts[i] + texts[j]).strip()
        reverse = (texts[j] + texts[i]).strip()
        print(f"\n{'':<24}{pair:>18}{reverse:>18}")
        print(f"{'the bigrams themselves':<24}{in_the_text[i, j]:>18.1%}{in_the_text[j, i]:>18.1%}")
        for name, scores in scores_of_forms.items():
            p = softmax(scores)
            pair_cell = f"{scores[i, j]:.1f} ({p[i, j]:.1%})"
            reverse_cell = f"{scores[j, i]:.1f} ({p[j, i]:.1%})"
            print(f"{name:<24}{pair_cell:>18}{reverse_cell:>18}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, metavar="FILE", help="count the pairs of this text")
    parser.add_argument("--dim", type=int, default=64, help="D (default: 64)")
    parser.add_argument(
        "--seed", type=int, default=0, help="another seed begins with other numbers"
    )
    args = parser.parse_args()
    try:
        if args.dim < 1 or args.seed < 0:
            raise ValueError("--dim must be at least 1, and --seed at least 0")
        counts, texts = read_bigrams(args.text)
        pairs = counts / counts.sum()
        scores_of_forms = print_losses(pairs, D=args.dim, seed=args.seed)
    except (OSError, ValueError) as error:
        print(f"bigram.py: error: {error}", file=sys.stderr)
        sys.exit(2)
    print_pairs(scores_of_forms, pairs, texts)
    if args.text is None and args.dim == parser.get_default("dim"):
        print(WHAT_TO_SEE)


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # not on Windows
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # after `| head -1`, end without an error
    main()
