"""Train a GPT-2, and learn the vocabulary of its tokenizer."""

# The initial values of an untied W_U: name in `tiedgpt train` -> name in GPT2.untie
INITS = {"normal": "random", "copy": "copy", "zeros": "zeros"}

MAX_COUNT = 2**31 - 1  # the largest number of steps, sequences, ...
