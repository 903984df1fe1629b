"""What a symmetric A costs: the floor of a symmetric bigram model's loss, and how symmetric a text is.

M [V, V] has the share of each pair of neighbours in a text, M[a, b] that of a followed by b. A bigram model
predicts p(b|a) = softmax(A[a])[b]. Its excess is its cross entropy less the text's own H(b|a), in nats per
token: sum_ab M[a, b] log(M[b|a] / p(b|a)), which is at least 0.

The floor. Let every token be as often the first of a pair as the second, as in any text but for its first
and last token. Then over all symmetric A the least excess is the Jensen-Shannon divergence of M and M^T:

    JSD(M, M^T) = KL(M || S) = sum_ab M[a, b] log(M[a, b] / S[a, b]),    S = (M + M^T) / 2

Proof. The excess is convex in A, and the symmetric A are a linear space. So A is best if and only if the
derivative is 0 in every symmetric direction: with m the shares of the tokens, for all a and b,

    m[a] p(b|a) + m[b] p(a|b) = M[a, b] + M[b, a]

A = log S is symmetric. The rows of S add up to m, so its p(b|a) is S[a, b] / m[a], and this solves the
equation. Its excess is sum_ab M[a, b] log((M[a, b] / m[a]) / (S[a, b] / m[a])), the JSD. If S has zeros, no
finite A reaches it, but some come as close as wanted. So the floor is 0 if M is symmetric, as in a reversible
Markov chain, and ln 2 if no pair occurs in both orders. p(b|a) = S[a, b] / m[a] is the mean of a chain and
its reversal. [Wolfer & Watanabe 2021] have projections onto the reversible chains in closed form.

Three remarks.

- A bias for each next token does not help: A[a, b] + c[b] predicts the same as A[a, b] + c[a] + c[b], which
  is symmetric.
- It is the floor of the path `raw`, not of a tied GPT-2 without layers: ln_f breaks the symmetry. Let u_b be
  the mean of b's embedding, s_b its standard deviation, and n_b the embedding after both are removed. With
  the weight g and the bias of ln_f, `normed` is

      A[a, b] = s_b sum_i g_i n_a[i] n_b[i]  +  (g . n_a) u_b  +  bias . W_E[b]

  The first term is symmetric but for the factor s_b of each column. The second is a product w_a u_b.
  This form fits a cycle, such as tokens 0, 1, 2, 0, ..., whose JSD is ln 2. Its best fit to tinyshakespeare
  with 1,024 tokens and D = 128 (fits.py, "ln_f") is 0.10 nats above the text's bigrams; the floor is 0.59.
- Without the condition on the counts the least excess is lower than the JSD. If c are the shares of the
  second tokens, A = log S has an excess of JSD - KL(m || (m + c) / 2). The two ends of a text of N tokens
  change it by about 1 / N.
"""

import numpy as np

from .corpus import Corpus
from .solved import PRIOR


def jsd_floor(pairs: np.ndarray | Corpus) -> float:
    """The Jensen-Shannon divergence of M and M^T in nats, from the counts or shares of pairs [V, V].

    At most ln 2 = 0.693; 0 without pairs. If every token is as often first as second, which is true of a text
    up to its two ends, it is the least excess of a bigram model with a symmetric A.

    >>> cycle = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]])
    >>> jsd_floor(np.array([[3, 1], [1, 0]])), round(jsd_floor(cycle), 3)
    (0.0, 0.693)
    """
    if isinstance(pairs, Corpus):
        V = len(pairs.counts)
        first, second, counts = pairs.first_tokens(), pairs.successors, pairs.pair_counts
    else:
        V = len(pairs)
        first, second = np.nonzero(pairs)
        counts = pairs[first, second].astype(np.float64)
    if not counts.size:
        return 0.0
    keys, reversed_keys = first * V + second, second * V + first  # keys are sorted
    place = np.minimum(np.searchsorted(keys, reversed_keys), keys.size - 1)
    opposite = np.where(keys[place] == reversed_keys, counts[place], 0)  # M^T where M is not 0
    return float(counts @ np.log(2 * counts / (counts + opposite)) / counts.sum())


def text_asymmetry(pairs: np.ndarray) -> float | None:  # [V, V]
    """|A - A^T| / |A| for A the log bigram table of a text, with the means of its rows and columns removed.

    `pairs` are counts of pairs of frequent tokens. None for fewer than two tokens. Zeros: PRIOR pairs in
    proportion to the next tokens' counts are added to each row. On tinyshakespeare a PRIOR of 0.000001 or 100
    changes the result by less than 0.01.

    The means are removed because they say nothing about symmetry. A mean of a row changes no prediction. The
    means of columns are the token counts, and a table of these alone has an asymmetry of sqrt(2).
    """
    shares = pairs.sum(axis=0) / max(1, pairs.sum())
    seen = np.flatnonzero(shares)
    if seen.size < 2:
        return None
    A = np.log(pairs[np.ix_(seen, seen)] + PRIOR * shares[seen])
    A -= A.mean(axis=1, keepdims=True)
    A -= A.mean(axis=0)
    norm = np.linalg.norm(A)
    return float(np.linalg.norm(A - A.T) / norm) if norm else 0.0


def without_diagonal(A: np.ndarray, tokens: np.ndarray | None = None) -> np.ndarray:  # [n, V] -> [n, V]
    """A with each token's score for itself replaced by the mean of its other scores.

    Row i is that of token i, or of tokens[i] if there are `tokens` [n].
    """
    A = A.copy()
    place = np.arange(len(A)), np.arange(len(A)) if tokens is None else tokens
    A[place] = (A.sum(axis=1) - A[place]) / max(1, A.shape[1] - 1)
    return A
