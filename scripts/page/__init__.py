"""What scripts/make_page.py measures, counts or reads from runs.jsonl: the article's figures."""
