"""Measurements of what tying does to a model. Each module computes one kind, and report.py all of them.

Letters as in model.py: V vocabulary, D width, W_E [V, D], W_U [D, V]; n tokens, P distinct pairs.
"""
