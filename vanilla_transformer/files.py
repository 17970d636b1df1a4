"""Text in, text out: lines from a file or standard input, results to a file that is never left half-written."""

import codecs
import gzip
import io
import os
import shutil
import signal
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TextIO

from tqdm.auto import tqdm


GZIP_MAGIC = b"\x1f\x8b"


@contextmanager
def named_if_damaged(path: str) -> Iterator[None]:
    """Where the gzip file that is read within proves to be damaged, raise a ValueError that names it."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file ({error}): fetch or compress it again.") from error


@contextmanager
def open_bytes(path: str) -> Iterator[BinaryIO | gzip.GzipFile]:
    """A file, also a gzipped one; standard input for "-".

    Raises:
        ValueError: the name ends in .gz, but the file is damaged or not gzipped; or the other way round.
        FileNotFoundError: there is no such file.
    """
    if path == "-":
        yield sys.stdin.buffer
        return
    with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as stream, named_if_damaged(path):
        if not isinstance(stream, gzip.GzipFile) and stream.peek(2).startswith(GZIP_MAGIC):
            raise ValueError(f"{path} is a gzip file: rename it to {path}.gz, or decompress it.")
        yield stream


def check_input(path: str) -> None:
    """Raise a FileNotFoundError, before long work begins, if there is no such file; "-" is standard input."""
    if path != "-" and not Path(path).exists():  # not opened, since a pipe can be opened only once
        raise FileNotFoundError(f"{path}: there is no such file.")


def check_output(path: str | None) -> None:
    """Look, before long work begins, whether a file can be written; None or "-" is none.

    Raises:
        FileNotFoundError: it has no folder to lie in.
        PermissionError: that takes no new file, which would take the place of the old one.
    """
    if path in (None, "-") or cannot_be_replaced(Path(path)):
        return
    folder = behind_links(path).parent
    if not folder.is_dir():
        raise FileNotFoundError(f"{path}: there is no such folder as {folder}.")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{path}: {folder} takes no new file, which would replace a whole one: choose another.")


def utf8_lines(path: str, keep_ends: bool = False) -> Iterator[str]:
    """Yield the lines of a file, which may be gzipped, or of standard input for "-".

    A line ends with "\\n" or "\\r\\n", which `keep_ends` keeps; a lone "\\r" is text. A byte order mark at the
    beginning is dropped.

    Raises:
        ValueError: a line is not valid UTF-8, or a gzipped file is damaged; the message names the file, and the line.
        FileNotFoundError: there is no such file.
    """
    with open_bytes(path) as stream:
        for number, line in enumerate(stream, start=1):
            if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                raise ValueError(f'{path} is UTF-16, which Windows calls "Unicode": save it as UTF-8.')
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path}, line {number}: not UTF-8 ({error.reason} at byte {error.start})."
                ) from error
            yield text if keep_ends else text.removesuffix("\n").removesuffix("\r")


@contextmanager
def written(file: Path, name: str) -> Iterator[TextIO]:
    """A file to write UTF-8 text to, which is gzipped if `name`, as the file is to be called, ends in .gz."""
    with file.open("wb") as stream:
        packed = name.endswith(".gz")
        binary: BinaryIO | gzip.GzipFile = gzip.GzipFile(name, "wb", fileobj=stream) if packed else stream
        with io.TextIOWrapper(binary, encoding="utf-8") as text:
            yield text


def cannot_be_replaced(path: Path) -> bool:
    """Whether it is a pipe, a device, or a name that the system has for an open file, such as /dev/stdout."""
    return (path.exists() and not path.is_file()) or path.parent in (Path("/dev"), Path("/dev/fd"))


def behind_links(path: str | Path) -> Path:
    """The file itself where the path is a symbolic link, or the path as it is."""
    return Path(os.path.realpath(path)) if Path(path).is_symlink() else Path(path)


def leave(number: int, _: Any) -> NoReturn:
    """The handler of a signal that ends the process as an exit does, with what cleans up on the way."""
    raise SystemExit(128 + number)


@contextmanager
def hidden_folder(beside: Path) -> Iterator[Path]:
    """An empty folder beside a file or a folder, gone in the end, also where that is SIGTERM."""
    # Not where the signal has a handler already, and no other thread may set one.
    unhandled = threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if unhandled:
        signal.signal(signal.SIGTERM, leave)
    try:
        with tempfile.TemporaryDirectory(dir=beside.parent, prefix=f".{beside.name}.") as folder:
            yield Path(folder)
    finally:
        if unhandled:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def open_output(path: str) -> Iterator[TextIO]:
    """Standard output for "-"; else a new file that takes the place of `path` only once it is complete.

    Text is UTF-8, and gzipped if `path` ends in .gz. It can be read by whom the file of before could. Links lead to
    files that are replaced; pipes and devices are written to as they are.

    For the errors see `check_output`.
    """
    check_output(path)
    if path == "-":
        yield sys.stdout
        sys.stdout.flush()
        return
    if cannot_be_replaced(Path(path)):
        with written(Path(path), path) as stream:
            yield stream
        return
    file = behind_links(path)
    with hidden_folder(file) as folder:
        part = folder / file.name
        with written(part, path) as stream:
            yield stream
        if file.exists():
            shutil.copymode(file, part)
        os.replace(part, file)


def check_new(path: str | Path) -> None:
    """Raise a ValueError if there is something of the name that a new folder is to have, be it a link to nowhere."""
    if os.path.lexists(path):
        raise ValueError(f"{path} exists: choose a new folder.")


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """A folder to fill, which becomes `path` once it is complete, and is gone if that fails.

    Raises:
        ValueError: `path` exists, or does by then.
    """
    path = Path(path)
    check_new(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with hidden_folder(path) as folder:
        yield folder / path.name
        try:
            os.replace(folder / path.name, path)
        except OSError:
            check_new(path)  # another process has made it in the meantime
            raise


def map_by_length(
    function: Callable[[list[str]], Iterable[str]], texts: list[str], batch_size: int, description: str
) -> list[str]:
    """Apply `function` to batches of texts of similar length, longest first, and give the results in input order."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]), reverse=True)
    results = [""] * len(texts)
    with tqdm(total=len(texts), desc=description, file=sys.stderr, disable=None) as progress:
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            for row, result in zip(rows, function([texts[row] for row in rows]), strict=True):
                results[row] = result
            progress.update(len(rows))
    return results
