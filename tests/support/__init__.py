"""What several test modules share. Fixtures are in conftest.py.

models      small random models, and a text in their tokens
commands    the command line in this process, and its output and errors
terminal    a command on a pseudo-terminal
texts       random texts, and merging by the book
generation  the tokens of several prompts
checks      an error of one line, the memory of a call, the files of a directory
hub_cache   a Hugging Face cache
reference   where reference data is
edits       random edits of bytes and of JSON, and hostile arguments

comparing           models to compare, and their activations
other_gpt2          a GPT-2 in NumPy, written apart from tiedgpt
wrong_gpt2s         the same with one mistake each
torch_gpt2s         nanoGPT's and transformers' modules
exercise_solutions  a solution of each exercise
wrong_solutions     wrong ones
"""

import pytest

# Their assertions say what differs, as those of a test do.
pytest.register_assert_rewrite(
    "support.checks", "support.commands", "support.texts", "support.terminal"
)
