"""Another GPT-2 beside this one: which activation differs first, and which mistake explains it.

compare.py has `compare`, its report and its diagnosis. In the order of its steps:

    recording    from a torch module, a function or a file to the other GPT-2's arrays
    conventions  from its names and layouts to ours
    places       our activations, computed from the other GPT-2's, beside them, and with mistakes
    mistakes     the list of the known mistakes: here a new one is added
    diagnosis    the search for the mistakes that explain a difference

From less than activations, or from more than a forward pass:

    tokens                the verdict on greedy tokens; token_files reads a file with them
    vectors               the verdict on answers to the reference values of tests/vectors/v2
    vector_mistakes       what is planted for encode and decode, for a batch, steps with a cache,
                          gradients and AdamW

Four words in all of them. A trial plants a known mistake in our model. Its scope tells how far the
mistake goes: from all activations where it can be made, to one. `given` has those of the other
GPT-2's activations from which our model goes on. The window is the activations in which the first
difference may arise.
"""
