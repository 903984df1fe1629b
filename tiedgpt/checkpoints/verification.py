"""Verify a downloaded file: its size and its hash are those that were published.

Every file is verified when it is received (fetching.py), and again when it is asked for and is here
already (remote_models.py).
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .messages import progress_bar

BYTES_PER_READ = 1 << 20


@dataclass(frozen=True)
class Version:
    """The content that a file should have: its size and hash, where they are known."""

    size: int | None = None
    digest: str = ""  # 64 digits: SHA-256; 40 digits: SHA-1 of a git blob; "": unknown

    def find_difference(self, path: Path) -> str:
        """In what a file differs from this version, for an error; "" if in nothing.

        Raises OSError.
        """
        size = path.stat().st_size
        if self.size is not None and self.size != size:
            return f"it has {size} bytes, expected {self.size}"
        if self.digest == "":
            return ""

        is_git_hash = len(self.digest) == 40
        if is_git_hash:
            name = "git's SHA-1"
            # git hashes "blob", the size and a zero byte before the content.
            hasher: Any = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        else:
            name = "SHA-256"
            hasher = hashlib.sha256()
        with open(path, "rb") as file, progress_bar("verifying", size) as bar:
            while block := file.read(BYTES_PER_READ):
                hasher.update(block)
                bar.update(len(block))
        digest = hasher.hexdigest()
        if digest == self.digest:
            return ""
        return f"its {name} is {digest}, expected {self.digest}"
