"""For callers of before, until they are converted."""

PICKLE = "a pickle, which can run any code, so it is not read"
