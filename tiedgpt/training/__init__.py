"""Train a GPT-2, and learn the vocabulary of its tokenizer."""

# How an untied W_U can start, as `tiedgpt train` says it -> as GPT2.untie does.
INITS = {"normal": "random", "copy": "copy", "zeros": "zeros"}

MAX_COUNT = 2**31 - 1  # the largest number of steps, sequences, ...
