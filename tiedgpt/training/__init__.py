"""Train a GPT-2, and learn the vocabulary of its tokenizer."""
