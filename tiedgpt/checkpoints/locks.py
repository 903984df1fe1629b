"""Lock a file, so that one process at a time does what the file stands for.

The operating system holds the lock and releases it when the process ends, even if it is killed.
`publishing.lock_directory` locks a directory in this way.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import CheckpointError

LOCK = ".lock"  # a file that a process keeps locked while it uses the directory
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has none
ID_BYTES = 20  # of the process id in the file, which is padded to overwrite a longer one
Waiting = Callable[[], Any] | None  # called once, when a lock is another process's


@contextmanager
def locked_file(path: Path, waiting: Waiting = None, without_locks: bool = True) -> Iterator[None]:
    """Make and lock a file that holds this process's id; remove it at the end.

    waiting: is called if another process has the lock, which is then waited for. None: that is an
        error.
    without_locks: whether to go on where the file system has no locks.
    """
    lock = _open_and_lock(path, waiting, without_locks)
    try:
        with suppress(OSError):  # a full disk
            os.write(lock, str(os.getpid()).ljust(ID_BYTES).encode())
        yield
    finally:
        with suppress(OSError):  # on Windows, an open file cannot be removed: it stays
            os.unlink(path)
        os.close(lock)


def _open_and_lock(path: Path, waiting: Waiting, without_locks: bool) -> int:
    """The descriptor of the file when it is locked."""
    is_waiting = False
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | NO_FOLLOW, 0o666)
        is_locked = try_lock(lock, without_locks)
        links = os.fstat(lock).st_nlink  # the number of names that the file has
        os.lseek(lock, 0, os.SEEK_SET)  # on Windows, try_lock moves the position
        if is_locked and links == 1:
            return lock
        owner = os.read(lock, ID_BYTES).decode(errors="replace").strip()
        os.close(lock)

        if links > 1:
            raise CheckpointError(f"{path} is a link to another file; remove it")
        if links == 0:  # its process removed the file just now
            continue
        if waiting is None:
            process = f"process {owner}" if owner.isdecimal() else "another process"
            raise CheckpointError(
                f"{path.parent} is in use by {process}; wait, or choose another directory"
            )
        if not is_waiting:
            is_waiting = True
            waiting()
        time.sleep(0.01)


def try_lock(descriptor: int, without_locks: bool = True) -> bool:
    """Lock an open file unless another process has.

    Where the file system has no locks, it returns `without_locks`.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, 1 << 30, os.SEEK_SET)  # beyond the content, which others may read
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return without_locks
    return True
