"""The tying experiment: what a model loses if its token embedding is also its output matrix.

Read the modules in this order:

    runs.py         what is trained: one table, and which run comes next
    trainer.py      trains one small model and measures it
    differences.py  from runs.jsonl to differences between models, with intervals
    tables.py       what the tables of some of these models know, over seeds
    pictures.py     the pictures of the page

and for the registered experiment, whose predictions are older than its runs:

    english.py      makes its text, 26 MB of English
    registered.py   its table, which run comes next, and how a run is measured
    verdicts.py     its analysis: which predictions hold

scripts/tying_experiment.py is the command, with the queue of runs. scripts/tying_results has the
runs and the page that was written from them.
"""
