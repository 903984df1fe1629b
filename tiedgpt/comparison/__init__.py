"""Another GPT-2 beside this one: which activation differs first, and which mistake explains it.

compare.py has `compare` and its report. In the order of its steps:

    recording     from a torch module or a function to the other GPT-2's arrays
    conventions   from its names and layouts to ours
    forward_pass  our activations, computed from the other GPT-2's
    agreement     which of the two agree
    diagnosis     which known mistake explains the first that differs
    trials        the known mistakes, each in each place where it may be
    mistakes      the list of them: here a new one is added
    place         what a mistake is given to compute a wrong activation

Four words in all of them. A trial plants a known mistake in our model. Its scope tells how far the
mistake goes: from all activations where it can be made, to one. `given` has those of the other
GPT-2's activations from which our model goes on. The window is the activations in which the first
difference may arise.
"""
