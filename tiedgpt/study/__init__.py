"""Measurements of what tying does to a model. reports.py answers each question once.

How tokens predict tokens: paths.py (A = W_E W_U, and three longer paths), bigrams.py (a path beside
the pair counts of a text, from corpus.py; what it adds to the token counts; which MLP makes
bigrams), solved.py (the best output matrix for these counts). What a model predicts, and which of
its parts say so: predictions.py. Both matrices: embeddings.py (which tokens are neighbours, what a
row knows of a token's neighbours in the text), gradients.py (the two gradients of a tied W_E).

Letters as in model.py: V vocabulary, D width, W_E [V, D], W_U [D, V]; n tokens, P distinct pairs.
"""
