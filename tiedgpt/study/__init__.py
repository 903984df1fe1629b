"""What the switch does to a model: each claim about tying as a number, each room one kind of number.

    corpus.py        which token follows which in a text, counted
    paths.py         four ways from one token to logits, from W_E W_U alone to the whole model
    direct_path.py   A = W_E W_U: is it symmetric, does a token predict itself?
    bigrams.py       how near each path comes to the corpus's counts
    similarity.py    which tokens a matrix holds for alike; rank correlation
    swap.py          the loss of a model, and of its body under the other head
    lens.py          what each layer's residual stream would say

Letters as in model.py: V vocabulary, D width, W_E [V, D], W_U [D, V]; n tokens, P different pairs.
"""
