"""Text in, text out: lines from a file or standard input, results to a file that is never left half-written."""

import codecs
import gzip
import io
import os
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

from tqdm.auto import tqdm


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
        ValueError: the file's name ends in .gz, but it is damaged, or not gzipped.
        FileNotFoundError: there is no such file.
    """
    if path == "-":
        yield sys.stdin.buffer
        return
    with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as stream, named_if_damaged(path):
        yield stream


def check_input(path: str) -> None:
    """Raise a FileNotFoundError, before long work begins, if there is no such file; "-" is standard input."""
    if path != "-" and not Path(path).exists():  # not opened, since a pipe can be opened only once
        raise FileNotFoundError(f"{path}: there is no such file.")


def check_output(path: str | None) -> None:
    """Raise a FileNotFoundError, before long work begins, if an output file has no folder to lie in."""
    if path not in (None, "-") and not Path(path).parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no such folder as {Path(path).parent}.")


def utf8_lines(path: str) -> Iterator[str]:
    """The lines of a file, also of a gzipped one, or of standard input for "-".

    A byte order mark, which editors on Windows put before the first line, is no part of it.

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
            yield text.removesuffix("\n").removesuffix("\r")


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


@contextmanager
def open_output(path: str) -> Iterator[TextIO]:
    """Standard output for "-"; else a new file that takes the place of `path` only once it is complete.

    Text is UTF-8, and gzipped if `path` ends in .gz. Pipes and devices are written to as they are.
    """
    if path == "-":
        yield sys.stdout
        sys.stdout.flush()
        return
    if cannot_be_replaced(Path(path)):
        with written(Path(path), path) as stream:
            yield stream
        return
    file = Path(path)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as folder:
        part = Path(folder) / file.name
        with written(part, path) as stream:
            yield stream
        os.replace(part, file)


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """A folder to fill, which becomes `path` once it is complete, and is gone if that fails.

    Raises:
        ValueError: `path` exists.
    """
    path = Path(path)
    if path.exists():
        raise ValueError(f"{path} exists: choose a new folder.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as part:
        yield Path(part) / path.name
        os.replace(Path(part) / path.name, path)


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
