"""Test that commands write results to files, gzipped files, pipes, and standard output in any locale."""

import gzip
import os
import sys
from pathlib import Path
from threading import Thread

import pytest

from family import encoder_decoder
from fresh_process import run_fresh, run_python
from saved_models import save
from vanilla_transformer.cli import export, translate


SENTENCE = "He said yes."  # The Spanish translation contains non-ASCII letters.


@pytest.fixture(scope="module")
def translation(tmp_path_factory) -> str:
    """Return the translation of `SENTENCE` by the shipped model, as written to a regular file."""
    file = tmp_path_factory.mktemp("plain") / "out.txt"
    translate.main([SENTENCE, "--output", str(file)])
    text = file.read_bytes().decode("utf-8")
    assert not text.isascii() and text.endswith("\n")
    return text


def read_in_background(file: Path) -> tuple[Thread, list[bytes]]:
    """Read a pipe in a thread, like another program would; return the thread and the received data."""
    received: list[bytes] = []
    reader = Thread(target=lambda: received.append(file.read_bytes()), daemon=True)
    reader.start()
    return reader, received


def test_output_to_a_named_pipe_does_not_replace_it(translation, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader, received = read_in_background(pipe)
    translate.main([SENTENCE, "--output", str(pipe)])
    reader.join(timeout=20)
    assert received == [translation.encode()]
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


def test_output_can_be_a_file_descriptor(translation, tmp_path):
    """Test a pipe, as in the shell syntax >(gzip > x.gz), and a file, as for a redirected /dev/stdout."""
    readable, writable = os.pipe()
    with (tmp_path / "out.txt").open("wb") as file:
        for descriptor in (writable, file.fileno()):
            translate.main([SENTENCE, "--output", f"/dev/fd/{descriptor}"])
    os.close(writable)
    with open(readable, "rb") as pipe:
        assert pipe.read() == translation.encode()
    assert (tmp_path / "out.txt").read_bytes() == translation.encode()


def test_devices_and_link_targets_are_not_replaced(translation, tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "old.txt").write_text("old")
    links = {"null": os.devnull, "link.txt": "elsewhere/old.txt", "new.txt": "elsewhere/new.txt", "lost.txt": "none/x"}
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    for name in ("null", "link.txt", "new.txt"):
        translate.main([SENTENCE, "--output", str(tmp_path / name)])
    with pytest.raises(FileNotFoundError, match=r"lost\.txt: there is no such folder as .*none"):
        translate.main([SENTENCE, "--output", str(tmp_path / "lost.txt")])
    assert Path(os.devnull).is_char_device()
    for name in ("old.txt", "new.txt"):
        assert (folder / name).read_bytes() == translation.encode()
    assert {path.name: os.readlink(path) for path in tmp_path.iterdir() if path.is_symlink()} == links


def test_a_replaced_file_keeps_its_permissions(translation, tmp_path):
    file = tmp_path / "out.txt"
    for mode in (0o600, 0o664):
        file.write_text("old")
        file.chmod(mode)
        translate.main([SENTENCE, "--output", str(file)])
        assert file.read_bytes() == translation.encode() and file.stat().st_mode & 0o777 == mode


# Run commands with a file size limit, so that writes fail, and print their last lines of stderr.
FULL = """
import contextlib, io, resource
from vanilla_transformer.__main__ import main

sys.dont_write_bytecode = True  # Python would keep its modules cut short
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
told = []
for command in arguments:
    sys.argv = ["vanilla-transformer", *command.split()]
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.suppress(SystemExit):
        main()
    told.append(err.getvalue().splitlines()[-1])
print(json.dumps(told))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
def test_a_full_disk_gives_a_one_line_error_and_keeps_existing_files(tmp_path):
    save(tmp_path / "model", encoder_decoder, "seq2seq")
    encoder_decoder().save_pretrained(tmp_path / "bare")
    for code in (tmp_path / "bare").glob("*.py"):
        code.unlink()  # the weights must be the first file that is too large
    (tmp_path / "in.txt").write_text("one two three\n" * 100)
    (tmp_path / "out.txt").write_text("old")
    before = sorted(tmp_path.rglob("*"))
    commands = {
        "translate": "--model model --input in.txt --output out.txt",
        "export": "--source model --output exported",
        "average": "--checkpoints bare bare --output mean",
    }
    told = run_fresh(FULL, tmp_path, *(f"{name} {options}" for name, options in commands.items()), installed=True)
    for name, line in zip(commands, told, strict=True):
        assert line.startswith(f"vanilla-transformer {name}: error: ") and "File too large" in line
    assert sorted(tmp_path.rglob("*")) == before and (tmp_path / "out.txt").read_text() == "old"


def test_export_rejects_an_existing_output_path_before_it_loads_the_model(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="link exists: choose a new folder"):
        export.main(["--source", "missing", "--output", str(tmp_path / "link")])


def test_output_to_a_gz_file_is_compressed(translation, tmp_path):
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


def test_user_files_named_like_temporary_files_are_kept(translation, tmp_path):
    source = tmp_path / "out.txt.part"
    source.write_text(f"{SENTENCE}\n")
    translate.main(["--input", str(source), "--output", str(tmp_path / "out.txt")])
    assert (tmp_path / "out.txt").read_bytes() == translation.encode()
    assert source.read_text() == f"{SENTENCE}\n"


def test_standard_output_is_utf8_in_every_locale(translation):
    code = """
import sys
sys.stdout.reconfigure(encoding="cp1251")  # Cyrillic
from vanilla_transformer.__main__ import main
main()
"""
    result = run_python(["-c", code, "translate", SENTENCE], env=os.environ | {"HF_HUB_OFFLINE": "1"})
    assert result.returncode == 0, result.stderr
    assert result.stdout == translation
