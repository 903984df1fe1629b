"""Measurements of what tying does to a model. Each module computes one kind of number.

    corpus.py        count which token follows which in a text
    paths.py         four ways from one token to logits, from W_E W_U alone to the whole model
    direct_path.py   A = W_E W_U: is it symmetric, what does that cost, does a token predict itself?
    bigrams.py       compare each path with the bigram counts of a text
    solved.py        the output matrix that fits a corpus best: the price of the tie, and of the rank
    similarity.py    do two embeddings agree on which tokens are similar? rank correlation
    gradients.py     the two gradients of a tied embedding, apart
    toy.py           tying with three words, in matrices that fit on a page
    predictions.py   probability and rank of a token, after a prompt, in a text and by each layer
    report.py        all of these for one model
    attribution.py   which heads, MLPs and biases a logit comes from; the model without some of them

Letters as in model.py: V vocabulary, D width, W_E [V, D], W_U [D, V]; n tokens, P distinct pairs.
"""
