"""Training a GPT-2, and the tokenizer it reads with."""
