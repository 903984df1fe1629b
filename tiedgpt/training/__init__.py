"""Train a GPT-2, and learn the vocabulary of its tokenizer.

loop.py is the training loop and what it saves, optimizer.py AdamW's step, merges.py learns the
vocabulary.
"""
