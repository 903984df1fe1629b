"""Train a GPT-2, and learn the vocabulary of its tokenizer.

start.py has what a training starts from, loop.py the steps, optimizer.py AdamW's step, saving.py
the files that a training writes and resumes from. merges.py learns the vocabulary.
"""
