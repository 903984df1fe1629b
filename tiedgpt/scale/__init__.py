"""Files of many documents: cut into shards, done by any number of processes, joined (README.md)."""
