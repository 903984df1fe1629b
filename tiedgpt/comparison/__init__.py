"""Another GPT-2 beside this one: which activation differs first, and which known mistake explains
it."""
