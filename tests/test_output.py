"""Where commands write what they are asked for: files, gzipped files, pipes, and standard output in any locale."""

import gzip
import os
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from fresh_process import ROOT
from vanilla_transformer.commands import translate


SENTENCE = "He said yes."  # in Spanish with letters that few encodings have


@pytest.fixture(scope="module")
def translation(tmp_path_factory) -> str:
    """The sentence's, by the model that ships with the project, from an ordinary file."""
    file = tmp_path_factory.mktemp("plain") / "out.txt"
    translate.main([SENTENCE, "--output", str(file)])
    text = file.read_bytes().decode("utf-8")
    assert not text.isascii() and text.endswith("\n")
    return text


def read_in_background(file: Path) -> tuple[Thread, list[bytes]]:
    """Wait for what comes through a pipe, as another program would."""
    received: list[bytes] = []
    reader = Thread(target=lambda: received.append(file.read_bytes()), daemon=True)
    reader.start()
    return reader, received


def test_a_named_pipe_is_written_to_and_stays_one(translation, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader, received = read_in_background(pipe)
    translate.main([SENTENCE, "--output", str(pipe)])
    reader.join(timeout=20)
    assert received == [translation.encode()]
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


def test_a_descriptor_is_written_to_whatever_it_is_of(translation, tmp_path):
    """A pipe, as the shell's >(gzip > x.gz), or a file, as /dev/stdout where that goes into one."""
    readable, writable = os.pipe()
    with (tmp_path / "out.txt").open("wb") as file:
        for descriptor in (writable, file.fileno()):
            translate.main([SENTENCE, "--output", f"/dev/fd/{descriptor}"])
    os.close(writable)
    with open(readable, "rb") as pipe:
        assert pipe.read() == translation.encode()
    assert (tmp_path / "out.txt").read_bytes() == translation.encode()


def test_a_device_and_what_a_link_leads_to_stay_what_they_are(translation, tmp_path):
    (tmp_path / "old.txt").write_text("old")
    (tmp_path / "null").symlink_to(os.devnull)
    (tmp_path / "link.txt").symlink_to(tmp_path / "old.txt")
    for name in ("null", "link.txt"):
        translate.main([SENTENCE, "--output", str(tmp_path / name)])
    assert (tmp_path / "null").is_symlink() and Path(os.devnull).is_char_device()
    assert (tmp_path / "link.txt").read_bytes() == translation.encode()
    assert (tmp_path / "old.txt").read_text() == "old"


def test_a_name_that_ends_in_gz_gets_what_a_command_reads_from_such_a_name(translation, tmp_path):
    file = tmp_path / "out.txt.gz"
    translate.main([SENTENCE, "--output", str(file)])
    assert gzip.decompress(file.read_bytes()) == translation.encode()
    translate.main(["--input", str(file), "--output", str(tmp_path / "again.txt")])
    assert (tmp_path / "again.txt").read_bytes().count(b"\n") == 1
    whole = file.read_bytes()
    (tmp_path / "wrong.txt").write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match="not UTF-8"):
        translate.main(["--input", str(tmp_path / "wrong.txt"), "--output", str(file)])
    assert file.read_bytes() == whole and len(list(tmp_path.iterdir())) == 3


def test_a_file_of_the_user_whose_name_looks_like_ours_is_left_alone(translation, tmp_path):
    source = tmp_path / "out.txt.part"
    source.write_text(f"{SENTENCE}\n")
    translate.main(["--input", str(source), "--output", str(tmp_path / "out.txt")])
    assert (tmp_path / "out.txt").read_bytes() == translation.encode()
    assert source.read_text() == f"{SENTENCE}\n"


def test_standard_output_is_utf8_as_the_input_is_whatever_the_locale(translation):
    command = [sys.executable, str(ROOT / "scripts/translate.py"), SENTENCE]
    environment = os.environ | {"PYTHONIOENCODING": "cp1251", "HF_HUB_OFFLINE": "1"}  # Cyrillic
    result = subprocess.run(command, env=environment, capture_output=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout.replace(b"\r\n", b"\n") == translation.encode()
