"""What a symmetric A costs: the floor of the loss of a symmetric bigram model.

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

A bias for each next token does not help: A[a, b] + c[b] predicts the same as the symmetric A[a, b] + c[a] +
c[b]. And it is the floor of the path `raw`, not of a tied GPT-2 without layers: ln_f divides each embedding
by its own standard deviation and adds a bias, so ln_f(W_E) W_E^T is not symmetric.
"""

import numpy as np

from .corpus import Corpus


def jsd_floor(corpus: Corpus) -> float:
    """The Jensen-Shannon divergence of M and M^T in nats, at most ln 2 = 0.693; 0 for a text without pairs.

    If every token is as often first as second, which is true of a text up to its two ends, it is the least
    excess of a bigram model with a symmetric A.
    """
    V, counts = corpus.counts.size, corpus.pair_counts
    if not counts.size:
        return 0.0
    first, second = corpus.first_tokens(), corpus.successors
    keys, reversed_keys = first * V + second, second * V + first  # keys are sorted
    place = np.minimum(np.searchsorted(keys, reversed_keys), keys.size - 1)
    opposite = np.where(keys[place] == reversed_keys, counts[place], 0)  # M^T where M is not 0
    return float(counts @ np.log(2 * counts / (counts + opposite)) / counts.sum())
