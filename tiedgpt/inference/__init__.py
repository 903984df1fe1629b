"""From a model to text and scores: sampling, drafts, the loss of a text, many documents.

The way of a prompt, from `tiedgpt generate PROMPT` to a token:

    cli/generate.py            reads the flags; checkpoints.open_model finds the model, and loads it
    inference/prompts.py       encode_text turns the prompt into token ids
    generation.py    sample_steps reads the prompt, and then a token after the other. By
                               default it guesses tokens from the text so far (drafts.py), in
                               sample_guessed; sample_tokens is the same without guesses, and plain
    gpt2/model.py              GPT2.final reads tokens, unembed gives the logits of the last one
    sampling.py      Sampling.choose draws the next token from its logits
    inference/text.py          TextSample turns tokens into text that can be printed
    cli/generate.py            prints it

`tiedgpt.generate`, for Python, is `generate` in generation.py, and goes the same way.
"""
