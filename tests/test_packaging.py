"""What an installation brings: the files that travel with a checkpoint, the library, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_wheel_holds_what_travels_and_the_library_and_nothing_else(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    travelling = {path.name for path in ROOT.glob("*_vanilla_transformer.py")}
    library = {str(path.relative_to(ROOT)) for path in (ROOT / "vanilla_transformer").rglob("*.py")}
    assert len(travelling) > 3 and len(library) > 20
    assert names == travelling | library | {"vanilla_transformer/py.typed"}


def test_the_facade_has_types_for_a_checker(tmp_path):
    user = tmp_path / "user.py"
    user.write_text(
        "from vanilla_transformer import VanillaTransformerDecoderConfig, VanillaTransformerForCausalLM\n"
        "model: int = VanillaTransformerForCausalLM(VanillaTransformerDecoderConfig())\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(user)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.stdout.count("error:") == 1, result.stdout
    assert 'expression has type "VanillaTransformerForCausalLM", variable has type "int"' in result.stdout
