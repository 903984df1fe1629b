"""The tying experiment. scripts/tying_experiment.py is its command.

grid.py        what is trained: the sets of runs, and the pilot that chose their learning rates
job.py         one run: train a small model and measure it
chains.py      Markov chains of a chosen asymmetry
calibrated.py  what each path adds to the token counts, after one fitted scale
texts.py       what is measured without training: the text, two models side by side, the time of a step
fits.py        the best A of rank D: untied, symmetric, tied, tied with ln_f
engine.py      do the missing runs, several at a time, and keep what is done on disk
results.py     means, intervals and tests over the seeds
page.py        page.md with these figures, the tables and the picture
page.md        the page, with a name in the place of each figure
"""
