"""Upload to the Hugging Face Hub: a saved model folder, this repository with its checkpoints, or the demo as a Space.

vanilla-transformer push runs/quickstart-en-es user/quickstart-en-es --dry_run
vanilla-transformer push . user/vanilla-transformer --repo
vanilla-transformer push demo user/vanilla-transformer-demo --space
"""

import argparse
import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import HfApi, ModelCard, RepoCard, SpaceCard, get_token
from huggingface_hub.utils import validate_repo_id
from transformers.dynamic_module_utils import get_relative_import_files

from vanilla_transformer.cli.parser import CommandParser
from vanilla_transformer.cli.repository_card import repository_card
from vanilla_transformer.files import check_source, read_object
from vanilla_transformer.loading import CHECKPOINTS, errors_name
from vanilla_transformer.training.checkpoints import weight_files


# `from_pretrained` loads these files by name, so files of an earlier model must be deleted on the Hub.
LOADED_BY_NAME = (
    "generation_config.json", "model.safetensors", "model.safetensors.index.json",
    f"model-{'[0-9]' * 5}-of-{'[0-9]' * 5}.safetensors",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
# Optimizer states, training arguments, intermediate checkpoints, logs and notes are not uploaded.
MODEL_FILES = (
    *("README.md", "curves.png", "config.json", "chat_template.jinja", *LOADED_BY_NAME),
    # Vocabulary files of tokenizers without tokenizer.json: FSMT, BERT, SentencePiece.
    *("vocab.json", "vocab-src.json", "vocab-tgt.json", "vocab.txt", "merges.txt", "*.spm", "*.model"),
)
LIBRARY_FILES = (
    "*_vanilla_transformer.py",
    *(f"vanilla_transformer/**/{name}" for name in ("*.py", "*.css", "*.js", "*.json", "py.typed")),
)
THUMBNAIL = "assets/thumbnail.png"
SPACE_FILES = ("README.md", "requirements.txt", "app.py", THUMBNAIL)
CHECKPOINT_FILES = tuple(f"checkpoints/*/{name}" for name in MODEL_FILES)
REPO_FILES = (
    *("README.md", "LICENSE", "NOTICE", "CITATION.cff", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md"),
    *("SECURITY.md", "pyproject.toml", "constraints.txt", "Makefile", *LIBRARY_FILES, *CHECKPOINT_FILES),
    *("scripts/**/*.py", "launch/*.yaml", "launch/*.sbatch"),
    *("recipes/**/*.yaml", "recipes/**/*.md", "recipes/data/**/*.jsonl.gz", "recipes/data/**/*.csv"),
    *("lab/*.md", "docs/**/*.md", "docs/**/*.py", "docs/**/*.png", "docs/**/*.svg", "docs/examples/*.json"),
    *("docs/notebooks/*.ipynb", *(f"demo/{name}" for name in SPACE_FILES)),
)


def select_files(folder: Path, patterns: tuple[str, ...]) -> dict[str, Path]:
    """Return the files of `folder` that match a pattern and are not hidden, by their relative paths.

    Raises:
        ValueError: a file is a symbolic link that leads out of the folder.
    """
    paths = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
    files = {path.relative_to(folder).as_posix(): path for path in paths}
    files = {name: path for name, path in files.items() if not re.search(r"(^|/)\.", name)}
    for path in files.values():
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{path} is a link to {path.resolve()}, outside {folder}: replace it by a file.")
    return files


def code_files(model: Path, folder: Path) -> set[str]:
    """Return the names of the Python files in `folder` that the configs of `model` need, including imports.

    Raises:
        FileNotFoundError: `model` has no config, or a Python file is missing.
        ValueError: a config is not valid JSON.
    """
    check_source(model)
    configs = filter(Path.is_file, (model / "config.json", model / "tokenizer_config.json"))
    settings = [read_object(config, name) for config in configs for name in ("auto_map", "custom_pipelines")]
    # "file.Class" is in this folder, "owner/model--file.Class" in another repository
    named = {folder / f"{module}.py" for module in re.findall(r'"(\w+)\.\w+"', json.dumps(settings))}
    imported = {Path(path) for file in named for path in get_relative_import_files(file)}
    return {path.relative_to(folder).as_posix() for path in named | imported}


def collect(args: argparse.Namespace) -> dict[str, Path]:
    """Return the files to upload by their paths on the Hub: for a model, a clone, or the demo with the package.

    Raises:
        FileNotFoundError: a file is missing that is needed to load a model or to start the Space.
        ValueError: a config or the index of the weights is damaged.
    """
    folder, root = args.folder, CHECKPOINTS.parent if args.space else args.folder
    if args.space:
        files = select_files(folder, SPACE_FILES) | select_files(root, LIBRARY_FILES)
        files |= {} if args.models else select_files(root, CHECKPOINT_FILES)
    else:
        files = select_files(folder, REPO_FILES if args.repo else MODEL_FILES)
    for name in ("README.md", "app.py") if args.space else ("README.md",):
        if name not in files:
            raise FileNotFoundError(f"{folder} has no {name}: give a trained model, a clone, or the demo's folder.")
    models = {path.parent for name, path in files.items() if name.startswith("checkpoints/")}
    if (args.repo or args.space) and not (models or args.models):
        raise FileNotFoundError(
            f"There are no models in {root / 'checkpoints'}: push from a clone of this project, or let a Space show "
            "models on the Hub with --models."
        )
    for model in sorted(models) if args.repo or args.space else [folder]:
        files |= select_files(root, tuple(code_files(model, root)))
        if missing := [weights.name for weights in weight_files(model) if not weights.is_file()]:
            raise FileNotFoundError(f"{model} lacks {', '.join(missing)}: save the model again.")
    return files


def load_card(args: argparse.Namespace) -> RepoCard:
    """Load the card (README.md) of a model or Space. For a clone, build it from the cards of its checkpoints.

    Raises:
        ValueError: the card's metadata is missing or not valid YAML, or does not describe a Gradio Space.
    """
    if args.repo:
        return repository_card(args.folder)
    file = args.folder / "README.md"
    with errors_name(str(file)):
        card = (SpaceCard if args.space else ModelCard).load(file)
    if not card.data.to_dict():
        raise ValueError(f"{file} has no metadata: it must begin with YAML between two lines of ---.")
    if args.space and card.data.to_dict().get("sdk") != "gradio":
        raise ValueError(f"{file} is not a Gradio Space: its metadata must say sdk: gradio.")
    if args.models:
        card.data.models = card.data.preload_from_hub = args.models
    return card


def describe(folder: Path, files: dict[str, Path]) -> str:
    """Print the files with their sizes in bytes, and the entries of `folder` that will not be uploaded."""
    sizes = {name: path.stat().st_size for name, path in files.items()}
    lines = [f"{size:>15,}  {name}" for name, size in sizes.items()]
    lines.append(f"{sum(sizes.values()):>15,}  bytes in {len(sizes)} files")
    included = {path.relative_to(folder).parts[0] for path in files.values() if path.is_relative_to(folder)}
    if others := sorted({path.name for path in folder.iterdir()} - included):
        lines.append(f"left out: {', '.join(others)}")
    return "\n".join(lines)


def push(args: argparse.Namespace, files: dict[str, Path], card: RepoCard) -> str:
    """Create the repository if it is new, upload the files, and return the URL of the commit.

    Raises:
        ValueError: the Hub rejects the card, or `--private` is given but the repository is public.
    """
    api, repo_type = HfApi(), "space" if args.space else "model"
    card.validate(repo_type=repo_type)
    created = api.create_repo(
        args.repo_id,
        repo_type=repo_type,
        private=args.private or None,  # None selects the account's default
        exist_ok=True,
        space_sdk="gradio" if args.space else None,
    )
    repo_id = created.repo_id
    if args.private and not api.repo_info(repo_id, repo_type=repo_type).private:
        raise ValueError(
            f"{repo_id} exists already and is public: make it private on the Hub first, or choose another name."
        )
    if args.revision != "main":
        api.create_branch(repo_id, branch=args.revision, repo_type=repo_type, exist_ok=True)
    if args.models:
        api.add_space_variable(repo_id, "MODEL_ID", " ".join(args.models))
    if args.space and THUMBNAIL in files:
        card.data["thumbnail"] = f"{api.endpoint}/spaces/{repo_id}/resolve/{args.revision}/{THUMBNAIL}"
    with TemporaryDirectory() as staged:  # only the listed files, which may come from several folders
        for name, path in files.items():
            link = Path(staged, name)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.resolve())
        if args.space or args.repo:
            Path(staged, "README.md").unlink()
            card.save(Path(staged, "README.md"))
        return api.upload_folder(
            repo_id=repo_id,
            folder_path=staged,
            commit_message=args.commit_message,
            repo_type=repo_type,
            revision=args.revision,
            delete_patterns=None if args.space or args.repo else list(LOADED_BY_NAME),
        ).commit_url


def main(arguments: list[str] | None = None) -> None:
    """Run the command.

    Raises:
        FileNotFoundError: the folder or a required file is missing.
        ValueError: an option does not apply, a config is damaged, the Hub rejects the name or the card, or there is
            no Hub token.
    """
    parser = CommandParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="Folder of the saved model, of the clone, or of the demo.")
    parser.add_argument("repo_id", help="Name on the Hub, as user/name.")
    parser.add_argument("--private", action="store_true", help="Make the repository private.")
    parser.add_argument("--revision", default="main", help="Branch to commit to; created if it does not exist.")
    parser.add_argument("--commit_message", default="Upload with vanilla-transformer push", help="Commit message.")
    parser.add_argument("--dry_run", action="store_true", help="List the files to upload without uploading them.")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--repo", action="store_true", help="The folder is a clone: upload its code and checkpoints as one repository."
    )
    kind.add_argument("--space", action="store_true", help="The folder is the demo: upload it as a Gradio Space.")
    parser.add_argument(
        "--models",
        nargs="+",
        default=[],
        help="Models on the Hub that the Space shows instead of the checkpoints (sets the Space's variable MODEL_ID).",
    )
    args = parser.parse_args(arguments)
    if not args.folder.is_dir():
        raise FileNotFoundError(f"{args.folder}: there is no such folder.")
    validate_repo_id(args.repo_id)
    if args.models and not args.space:
        raise ValueError("--models is an option of --space.")
    files = collect(args)
    card = load_card(args)
    print(describe(args.folder, files))
    if not (args.space or args.repo):
        print("Weights and settings on the Hub that this model does not have will be deleted.")
    if args.dry_run:
        print(f"A dry run: nothing was sent to {args.repo_id}.")
        return
    if get_token() is None:
        raise ValueError("There is no Hub token: run `hf auth login`, or set HF_TOKEN to one with write access.")
    print(push(args, files, card))
