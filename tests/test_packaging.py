"""Test that the wheel contains one package with the four model files, and that it works without a clone."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from vanilla_transformer.__main__ import COMMANDS


ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    tree = tmp_path_factory.mktemp("source") / "tree"
    # Leave out files that git ignores: outside a git repository, hatchling would include them.
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "runs", "site", "*.egg-info")
    shutil.copytree(ROOT, tree, ignore=ignored)
    return tree


@pytest.fixture(scope="module")
def wheel(tree, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(tree)]
    subprocess.run(command, check=True, timeout=600)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.slow
def test_a_source_distribution_contains_the_code_but_no_checkpoints(tree, tmp_path):
    python = tmp_path / "environment/bin/python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "environment")], check=True, timeout=600)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "hatchling"], check=True, timeout=600)
    build = [python, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=tree, check=True, capture_output=True, timeout=600)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    library = {str(path.relative_to(ROOT)) for path in (ROOT / "vanilla_transformer").rglob("*.py")}
    travelling = {path.name for path in ROOT.glob("*_vanilla_transformer.py")}
    assert names >= library | travelling | {"pyproject.toml", "LICENSE", "NOTICE"} and len(library) > 20
    assert [name for name in names if name.startswith(("checkpoints/", "lab/", "runs/"))] == []


@pytest.mark.slow
def test_a_wheel_contains_one_package_that_includes_the_model_files(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    travelling = {f"vanilla_transformer/{path.name}" for path in ROOT.glob("*_vanilla_transformer.py")}
    kinds = ("*.py", "*.css", "*.js", "*.json")
    files = (path for pattern in kinds for path in (ROOT / "vanilla_transformer").rglob(pattern))
    library = {str(path.relative_to(ROOT)) for path in files}
    assert len(travelling) == 4 and len(library) > 20
    others = {"vanilla_transformer/py.typed", "vanilla_transformer/cli/quickstart.yaml"}
    assert names == travelling | library | others


@pytest.mark.slow
def test_the_package_exports_types_for_type_checkers(tmp_path):
    """Use the layout of the wheel, because type checkers do not run the code that locates the files in a clone."""
    package = shutil.copytree(ROOT / "vanilla_transformer", tmp_path / "installed/vanilla_transformer")
    for path in ROOT.glob("*_vanilla_transformer.py"):
        shutil.copy(path, package)
    user = tmp_path / "user.py"
    user.write_text(
        "from vanilla_transformer import VanillaTransformerDecoderConfig, VanillaTransformerForCausalLM\n"
        "model: int = VanillaTransformerForCausalLM(VanillaTransformerDecoderConfig())\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(user)]
    environment = os.environ | {"MYPYPATH": str(package.parent)}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert result.stdout.count("error:") == 1, result.stdout
    assert 'expression has type "VanillaTransformerForCausalLM", variable has type "int"' in result.stdout


# --- Without a clone: install the wheel in its own environment, and work in an empty folder


class Elsewhere:
    """A virtual environment with only the wheel and its extras, and an empty working folder."""

    def __init__(self, folder: Path, wheel: Path):
        self.folder, self.programs = folder / "empty", folder / "environment" / "bin"
        self.folder.mkdir()
        subprocess.run([sys.executable, "-m", "venv", str(folder / "environment")], check=True, timeout=600)
        for packages in ("torch", f"{wheel}[train,export]"):  # install PyTorch first, as in the Makefile
            install = ["-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), packages]
            subprocess.run([str(self.programs / "python"), *install], check=True, timeout=3000)

    def run(self, program: str, *arguments: str) -> str:
        """Run `program` in the environment and return its output."""
        process = subprocess.run(
            [str(self.programs / program), *arguments], cwd=self.folder, stdin=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "HF_HOME": str(self.folder / "hf_home"), "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr
        return process.stdout

    def command(self, line: str) -> str:
        return self.run("vanilla-transformer", *shlex.split(line))


@pytest.fixture(scope="module")
def elsewhere(wheel, tmp_path_factory):
    return Elsewhere(tmp_path_factory.mktemp("elsewhere"), wheel)


IMPORTS = """
from pathlib import Path
import vanilla_transformer
from vanilla_transformer.conversion import convert
from vanilla_transformer.data import train_tokenizer
from vanilla_transformer.inside import record
from vanilla_transformer.training import (
    PaperSchedule, RecipeArguments, RecipeSeq2SeqTrainer, RecipeTrainer, TokenBudgetSampler, average_checkpoints,
    complete_checkpoints, make_fast,
)
print(Path(vanilla_transformer.__file__).parent)
"""


@pytest.mark.slow
def test_the_documented_python_api_can_be_imported(elsewhere):
    home = Path(elsewhere.run("python", "-c", IMPORTS).strip())
    assert home.is_relative_to(elsewhere.programs.parent)


@pytest.fixture(scope="module")
def runs(elsewhere):
    """Run the training example of the docs on pairs of numbers, with Marian and with our model."""
    script = shutil.copy(ROOT / "docs/examples/own_trainer.py", elsewhere.folder)
    numbers = ["eins", "zwei", "drei", "vier", "f\u00fcnf"]
    pairs = [
        {"source": f"{a + 1} {b + 1}", "target": f"{numbers[a]} {numbers[b]}"} for a in range(5) for b in range(5)
    ]
    (elsewhere.folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs * 4))
    for architecture in ("marian", "vanilla_transformer"):
        elsewhere.run("python", script, "pairs.jsonl", architecture, architecture)
    return elsewhere


TRANSLATE = """
import sys
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)  # without, the library asks
model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1], trust_remote_code=True)
ids = model.generate(**tokenizer("1 2", return_tensors="pt"), max_new_tokens=9)
print(type(model).__name__, model.get_output_embeddings().weight is model.get_input_embeddings().weight, ids.shape[1])
"""


@pytest.mark.slow
def test_the_training_example_of_the_docs_saves_models_that_load(runs):
    for folder, name in (
        ("marian", "MarianMTModel"),
        ("vanilla_transformer", "VanillaTransformerForConditionalGeneration"),
    ):
        found, tied, length = runs.run("python", "-c", TRANSLATE, folder).split()
        assert (found, tied) == (name, "True") and 1 < int(length) <= 10
        steps = {int(path.name.split("-")[1]) for path in (runs.folder / folder).glob("checkpoint-*")}
        assert steps == {10, 20, 30, 40, 50, 60}
        assert float(runs.run("python", "-c", DISTANCE_FROM_THE_MEAN, folder)) < 1e-6


DISTANCE_FROM_THE_MEAN = """
import sys
from safetensors.torch import load_file
steps = [load_file(f"{sys.argv[1]}/checkpoint-{step}/model.safetensors") for step in range(20, 61, 10)]
saved = load_file(f"{sys.argv[1]}/model.safetensors")
print(max((sum(step[name] for step in steps) / 5 - weight).abs().max().item() for name, weight in saved.items()))
"""


@pytest.mark.slow
def test_every_sub_command_has_help(elsewhere):
    overview = elsewhere.command("--help")
    for name in COMMANDS:
        assert f"\n  {name}" in overview
        assert f"usage: vanilla-transformer {name}" in elsewhere.command(f"{name} --help")


LANGUAGE_MODEL = """
from vanilla_transformer import VanillaTransformerDecoderConfig, VanillaTransformerForCausalLM
from vanilla_transformer.data import train_tokenizer
tokenizer = train_tokenizer(["one two three"] * 9, "causal", vocab_size=300)
config = VanillaTransformerDecoderConfig(vocab_size=len(tokenizer), num_layers=1, d_model=32, num_heads=2, d_ff=64)
VanillaTransformerForCausalLM(config).save_pretrained("lm")
tokenizer.save_pretrained("lm")
"""


@pytest.mark.slow
def test_every_sub_command_works_without_a_clone(runs):
    ours, folder = "vanilla_transformer", runs.folder
    (folder / "lines.txt").write_text("1 2\n3 4\n")
    (folder / ours / "README.md").write_text("---\nlibrary_name: transformers\n---\nA model.\n")
    runs.run("python", "-c", LANGUAGE_MODEL)

    runs.command(f"translate --model {ours} --input lines.txt --output translated.txt")
    assert len((folder / "translated.txt").read_text().splitlines()) == 2
    runs.command("generate --model lm --input lines.txt --output written.txt --max_new_tokens 5")
    assert (folder / "written.txt").read_text().startswith("1 2")
    runs.command(f"evaluate --model {ours} --test_file pairs.jsonl --columns source=source target=target "
                 "--scores scores.json")  # fmt: skip
    assert json.loads((folder / "scores.json").read_text())["scores"]["test"].keys() >= {"bleu", "chrf"}
    runs.command(f"average --run {ours} --last 3 --output averaged")
    assert "multi-head attention" in runs.command("walk")
    runs.command("walk --model averaged --text '1 2' --html walk.html")
    assert "</html>" in (folder / "walk.html").read_text()
    runs.command("import --source marian --output imported")
    assert (folder / "imported/modeling_vanilla_transformer.py").is_file()
    runs.command(f"import --source {ours} --output as_marian --to marian")
    for format, file in (("onnx", "decoder.onnx"), ("ctranslate2", "model.bin")):
        runs.command(f"export --source {ours} --output {format} --to {format}")
        assert (folder / format / file).stat().st_size > 1000
    sent, _, _ = runs.command(f"push {ours} user/name --dry_run").partition("left out")
    assert "model.safetensors" in sent and "modeling_vanilla_transformer.py" in sent
    assert "checkpoint-" not in sent
