"""The figures of the article: what scripts/make_page.py measures, counts or reads from runs.jsonl."""
