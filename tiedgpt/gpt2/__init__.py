"""GPT-2, and nothing else. Begin here.

Read the modules in this order:

    model.py       the forward pass, from token ids to logits: attention and its causal mask, the
                   MLP, the blocks, and the switch: tied or untied
    ops.py         the functions that it is made of (gelu, softmax, layer norm, ...), each with its
                   derivative
    backward.py    the gradient of every parameter; a tied matrix receives two
    tokenizer.py   text to token ids, and back

model.py uses two more modules, which you may read when you meet their names there:

    run.py         what a pass needs besides weights: the KV cache, the tape, edits, dropout
    parameters.py  the names and shapes of all parameters, and how many numbers they are

You may skip the others. config.py has the numbers that describe a model, activations.py the
functions that other checkpoints use in place of gelu_new, checks.py the checks of arguments.
prefill.py makes long prompts fast. special_tokens.py finds <|endoftext|> and other special tokens
in a text.
"""
