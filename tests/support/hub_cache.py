"""A Hugging Face cache of models."""

from pathlib import Path

CACHE = ".cache/huggingface/hub"  # in the home directory
COMMIT = "607a30d783dfa663caf39e06633721c8d4cfcd7e"


def snapshot(cache: Path, repository: str, commit: str = COMMIT) -> Path:
    """The folder for the files of a repository at a commit, which this does not make.

    It writes the commit into refs/main. A reader of the cache then looks for the files in
    snapshots/COMMIT.
    """
    folder = cache / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_bytes(commit.encode("latin-1") + b"\n")
    return folder / "snapshots" / commit
