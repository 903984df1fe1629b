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
            # The id is padded, so that it overwrites an older one.
            os.write(lock, f"{os.getpid():<20}".encode())
        yield
    finally:
        with suppress(OSError):  # Windows removes no open file: there, the file stays
            os.unlink(path)
        os.close(lock)


def _open_and_lock(path: Path, waiting: Waiting, without_locks: bool) -> int:
    """The descriptor of the file when it is locked."""
    is_waiting = False
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | NO_FOLLOW, 0o666)
        is_locked = try_lock(lock, without_locks)
        links = os.fstat(lock).st_nlink
        os.lseek(lock, 0, os.SEEK_SET)
        if is_locked and links == 1:
            return lock
        owner = os.read(lock, 20).decode(errors="replace").strip()
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
            waiting()
        is_waiting = True
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
