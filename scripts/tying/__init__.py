"""The tying experiment. scripts/tying_experiment.py is its command; grid.py says what is
trained."""
