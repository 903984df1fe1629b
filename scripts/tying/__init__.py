"""The tying experiment. scripts/tying_experiment.py is its command.

grid.py      what is trained: the sets of runs, each with the question that it answers
job.py       one run: train a small model, follow it, measure it
chains.py    Markov chains of a chosen asymmetry
fits.py      the best A of rank D: tied, symmetric of either sign, untied
calibrated.py  what each path adds to the token counts, after one fitted scale
measures.py  signs of ln_f's gains, effective rank, asymmetry without means
engine.py    do the missing runs, several at a time, and keep what is done on disk
results.py   means, intervals and differences over the seeds: results.json
page.py      page.md with the figures of results.json, and the pictures
page.md      the page, with a name in the place of each figure
"""
