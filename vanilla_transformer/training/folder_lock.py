"""One run at a time in a folder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


LOCKS: set[int] = set()


def drop_locks() -> None:
    """In a forked process: a worker that outlives a killed run for a moment is not to hold its folder."""
    for descriptor in LOCKS:
        os.close(descriptor)
    LOCKS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=drop_locks)


@contextmanager
def sole_run(folder: Path) -> Iterator[None]:
    """Lock the folder of a run. The lock is the kernel's: it leaves no file, and goes with the process, killed or not.

    Raises:
        ValueError: another process has the lock.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    LOCKS.add(descriptor)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"output_dir={folder}: another run trains into this folder. Wait for its end, or choose another."
            ) from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        LOCKS.discard(descriptor)
        os.close(descriptor)
        with suppress(OSError):  # a folder that holds something stays, and so do those around it
            for path in made:
                path.rmdir()  # a run that was refused leaves nothing behind
