"""Train a GPT-2, and learn the vocabulary of its tokenizer."""

INITS = ("copy", "random", "zeros")  # what GPT2.untie accepts
MAX_COUNT = 2**31 - 1  # the largest number of steps, sequences, ...
