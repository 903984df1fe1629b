"""From a model to text and scores: sampling, drafts, the loss of a text, many documents."""
