"""The tying experiment: what a model loses if its token embedding is also its output matrix.

scripts/tying_experiment.py is its command. settings.py says what is trained. claims.py has the
numbers and the text of each claim of the page, first_screen.py those above the claims. Its words:

    text         what a model is trained on; a name in a key is that of a text (data.text_name)
    chain        a Markov chain; a model may be trained on a walk through one in place of a text
    classes      a chain whose tokens have classes: those of a class have the same successors
    head         how the output matrix W_U comes from the token embedding W_E: a key of HEADS
    signs        a head: tied, and each gain of ln_f starts at 1 or -1 at random
    pilot        trainings with seeds of their own, that choose the learning rate of each head
    cost         the held-out loss of a tied model minus that of an untied one
    path         a way through a model from one token to scores of the next (tiedgpt/study/paths.py)
    calibrated   a path whose scores are stretched, and to which token counts are added
    unigram      the prediction of the token counts, the same after every token
    excess       a loss above that of the true probabilities: of a chain, or of a text's own bigrams
    floor        the lowest excess of a symmetric table of scores
    term         a measure of one run; a figure is a sum of terms, averaged over seeds
"""
