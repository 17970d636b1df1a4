"""Read lines from files or standard input, and write output files atomically."""

import codecs
import gzip
import io
import json
import logging
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO


logger = logging.getLogger(__name__)
GZIP_MAGIC = b"\x1f\x8b"

# The shipped models: included in a clone and in a Space, downloaded by an installed package.
CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"


def shipped_models() -> list[str]:
    """Return the folders of the locally available shipped models."""
    return sorted(str(config.parent) for config in CHECKPOINTS.glob("*/config.json"))


def open_binary(path: str) -> io.BufferedReader:
    """Open a local file, or a file on the Hub if the path starts with "hf://"."""
    if path.startswith("hf://"):
        from huggingface_hub import HfFileSystem  # slow to import

        return io.BufferedReader(HfFileSystem().open(path))
    return open(path, "rb")


@contextmanager
def open_bytes(path: str) -> Iterator[BinaryIO | gzip.GzipFile]:
    """Open a file, decompressing it if its name ends in .gz, or standard input for "-".

    Raises:
        ValueError: the name ends in .gz, but the file is damaged or not gzipped; or it is gzipped without that suffix.
        FileNotFoundError: the file does not exist.
    """
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        with open_binary(path) as file:
            zipped = path.endswith(".gz")
            if not zipped and file.peek(2).startswith(GZIP_MAGIC):
                raise ValueError(f"{path} is a gzip file: rename it to {path}.gz, or decompress it.")
            yield gzip.GzipFile(fileobj=file) if zipped else file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a complete gzip file ({error}): fetch or compress it again.") from error


def check_input(path: str) -> None:
    """Raise a FileNotFoundError if a file does not exist; "-" (standard input) is always accepted."""
    if path != "-" and not Path(path).exists():  # do not open the file: a pipe can be read only once
        raise FileNotFoundError(f"{path}: there is no such file.")


def read_settings(file: Path) -> dict[str, Any]:
    """Return the settings in a JSON config file of a model or tokenizer.

    Raises:
        ValueError: the file is not valid JSON, or its content is not an object.
    """
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not a valid JSON file: {error}.") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{file} holds {settings!r}; it must be an object of settings.")
    return settings


def read_object(file: Path, setting: str) -> dict[str, Any]:
    """Return a setting that is itself an object, such as `auto_map`, or an empty dictionary if it is missing.

    Raises:
        ValueError: the setting is not an object, or see `read_settings`.
    """
    value = read_settings(file).get(setting, {})
    if not isinstance(value, dict):
        raise ValueError(f"{file}: {setting} is {json.dumps(value)}; it must be an object.")
    return value


def check_source(source: str | Path, short_names: bool = False) -> None:
    """Check that `source` is a folder with a model, or could be a name on the Hub (owner/model).

    Args:
        short_names: also accept names without an owner, which some of the oldest models on the Hub have (gpt2).

    Raises:
        FileNotFoundError: the folder does not exist, or contains no model.
        ValueError: config.json is damaged.
    """
    path = Path(source)
    if path.is_dir():
        file = path / "config.json"
        if not file.is_file():
            raise FileNotFoundError(f"{source} holds no model: it has no config.json.")
        read_object(file, "auto_map")
        classes = read_settings(file).get("architectures") or []
        if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
            raise ValueError(f"{file}: architectures is {json.dumps(classes)}; it must be a list of class names.")
        return
    may_be_a_name = (len(path.parts) == 2 and not path.parent.is_dir()) or (short_names and len(path.parts) == 1)
    if not may_be_a_name or path.is_file():
        raise FileNotFoundError(
            f"{source}: there is no such folder. Give the folder of a trained model, or a name on the Hub, such as "
            "owner/model."
        )


def is_special(path: str) -> bool:
    """Whether the path is a pipe, a device, or a file descriptor such as /dev/stdout."""
    return path.startswith("/dev/") or (Path(path).exists() and not Path(path).is_file())


def check_output(path: str | None) -> None:
    """Raise a FileNotFoundError if the folder of an output file does not exist. None and "-" are always accepted."""
    if path not in (None, "-") and not (folder := Path(path).resolve().parent).is_dir():
        raise FileNotFoundError(f"{path}: there is no such folder as {folder}.")


def utf8_lines(path: str, keep_ends: bool = False) -> Iterator[str]:
    """Yield the lines of a file, which may be gzipped, or of standard input for "-".

    Lines end with "\\n" or "\\r\\n", which is removed unless `keep_ends` is set. A lone "\\r" is an ordinary
    character. A byte order mark at the beginning of the file is dropped.

    Raises:
        ValueError: a line is not valid UTF-8, or a gzipped file is damaged.
        FileNotFoundError: the file does not exist.
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
def temporary_sibling(path: Path) -> Iterator[Path]:
    """Create an empty hidden folder next to a file or folder, and remove it on exit."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        yield Path(folder)


@contextmanager
def open_output(path: str) -> Iterator[TextIO]:
    """Open standard output for "-"; otherwise, open a temporary file that replaces `path` once it is complete.

    Text is encoded as UTF-8, and gzipped if `path` ends in .gz. An existing file keeps its permissions. If `path` is a
    symbolic link, its target is replaced. Pipes and devices are written directly. For errors, see `check_output`.
    """
    check_output(path)
    if path == "-":
        yield sys.stdout
        sys.stdout.flush()
        return
    if is_special(path):
        with open(path, "w", encoding="utf-8") as stream:
            yield stream
        return
    file = Path(path).resolve()
    open_new = gzip.open if path.endswith(".gz") else open
    with temporary_sibling(file) as folder:
        part = folder / file.name
        with open_new(part, "wt", encoding="utf-8") as stream:
            yield stream
        if file.exists():
            shutil.copymode(file, part)
        os.replace(part, file)


def write_lines(stream: TextIO, texts: Iterable[str]) -> None:
    """Write each string as one line and flush it. Replace line breaks within a string by spaces, and warn once."""
    warned = False
    for number, text in enumerate(texts, start=1):
        line = " ".join(text.splitlines())
        if line != text and not warned:
            logger.warning("The result of line %d has line breaks: they are written as spaces.", number)
            warned = True
        stream.write(f"{line}\n")
        stream.flush()


def check_text(text: str) -> None:
    """Raise a ValueError if a command-line argument is not valid UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{text!r} is not UTF-8 (at character {error.start + 1}): write it in UTF-8.") from error


def check_texts(texts: list[str], file: str) -> None:
    """Check the input of a command: either texts, or a file of lines.

    Raises:
        ValueError: both are given, or an argument is not valid UTF-8.
        FileNotFoundError: the file does not exist.
    """
    if texts and file != "-":
        raise ValueError(f"Give texts or --input {file}, not both.")
    for text in texts:
        check_text(text)
    check_input(file)


def check_new(path: str | Path) -> None:
    """Raise a ValueError if a path exists, even if it is a broken link."""
    if os.path.lexists(path):
        raise ValueError(f"{path} exists: choose a new folder.")


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path at which to create a folder. It is moved to `path` on success and deleted on error.

    Raises:
        ValueError: `path` exists.
    """
    path = Path(path)
    check_new(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_sibling(path) as folder:
        yield folder / path.name
        os.replace(folder / path.name, path)


def markdown_table(header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    """Format a table in Markdown."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
