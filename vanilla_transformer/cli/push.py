"""Upload to the Hugging Face Hub: a saved model folder, this repository with its checkpoints, or the demo as a Space.

python scripts/push_to_hub.py runs/quickstart-en-es user/quickstart-en-es --dry_run
python scripts/push_to_hub.py . user/vanilla-transformer --repo
python scripts/push_to_hub.py demo user/vanilla-transformer-demo --space
"""

import argparse
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import yaml
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    ModelCard,
    RepoCard,
    SpaceCard,
    get_token,
)
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from huggingface_hub.utils import validate_repo_id
from transformers.dynamic_module_utils import get_relative_import_files

from vanilla_transformer.cli.parser import CommandParser
from vanilla_transformer.loading import CHECKPOINTS, check_source, read_object
from vanilla_transformer.training.checkpoints import weight_files


# What the library reads wherever it is, so that none may be left of an earlier model.
READ_IF_THERE = (
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
# What goes of a model, by name; and its code, by what its config names and that imports. Everything else stays here:
# states of optimizers, schedulers and random generators, training arguments (pickles all), checkpoints, logs, notes.
MODEL_FILES = (
    "README.md",
    "training_curve.png",
    "config.json",
    *READ_IF_THERE,
    # Of tokenizers that have no tokenizer.json, as FSMT's and those of sentencepiece.
    *("vocab.json", "vocab-src.json", "vocab-tgt.json", "vocab.txt", "merges.txt", "*.spm", "*.model"),
    "chat_template.jinja",
)
LIBRARY_FILES = (
    "*_vanilla_transformer.py",
    *(f"vanilla_transformer/**/{name}" for name in ("*.py", "*.css", "*.js", "py.typed")),
)
SPACE_FILES = ("README.md", "requirements.txt", "packages.txt", "*.py", "assets/*.css", "assets/*.js", "assets/*.png")
THUMBNAIL = "assets/thumbnail.png"
CHECKPOINT_FILES = tuple(f"checkpoints/*/{name}" for name in MODEL_FILES)
# Of this repository goes what somebody can use who has it from the Hub alone; the tests stay with its history.
REPO_FILES = (
    *("README.md", "LICENSE", "NOTICE", "CITATION.cff", "CHANGELOG.md"),
    *("CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md"),
    *("pyproject.toml", "constraints.txt", "Makefile"),
    *LIBRARY_FILES,
    *CHECKPOINT_FILES,
    *("scripts/**/*.py", "launch/*.yaml", "launch/*.sbatch"),
    *("recipes/**/*.yaml", "recipes/**/*.md", "recipes/data/**/*.jsonl.gz"),
    *("docs/**/*.md", "docs/**/*.py", "docs/**/*.png", "docs/**/*.svg"),
    *("docs/examples/*.json", "docs/notebooks/*.ipynb", *(f"demo/{name}" for name in SPACE_FILES)),
)


def select_files(folder: Path, patterns: tuple[str, ...]) -> dict[str, Path]:
    """The files of `folder` that match a pattern, hidden ones aside, by their names in it.

    Raises:
        ValueError: one of them is a link to something outside the folder.
    """
    found = {path.relative_to(folder): path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    files = {
        name.as_posix(): path
        for name, path in sorted(found.items())
        if not any(part.startswith(".") for part in name.parts)
    }
    for path in files.values():
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(
                f"{path} is a link to {path.resolve()}, outside {folder}: only files inside it are uploaded."
            )
    return files


def classes_named(config: Path) -> Iterator[str]:
    """The classes of a model's own that its config, or that of its tokenizer, names, as "file.Class".

    Raises:
        ValueError: the config is no JSON, or no object; or something else stands in the place of a class.
    """
    pipelines = read_object(config, "custom_pipelines").items()
    classes = {task: info.get("impl", "") if isinstance(info, dict) else info for task, info in pipelines}
    for key, named in (*read_object(config, "auto_map").items(), *classes.items()):
        # Of tokenizers there may be two, of which either may be null; and "other/model--file.Class" is not here.
        for name in named if isinstance(named, list) else [named]:
            if name is None:
                continue
            if not isinstance(name, str) or "." not in name:
                raise ValueError(f'{config} names {name!r} as the class of {key}; it must be as "file.Class".')
            if "--" not in name:
                yield name


def code_of(model: Path, folder: Path) -> set[str]:
    """The files of code in `folder` that a model needs: those that its configs name, and what these import there.

    Raises:
        FileNotFoundError: there is no config, or one names code that is not there.
        ValueError: a config is damaged.
    """
    check_source(model)
    files = set()
    for config in filter(Path.is_file, (model / "config.json", model / "tokenizer_config.json")):
        for name in classes_named(config):
            file = f"{name.split('.')[0]}.py"
            if not (folder / file).is_file():
                raise FileNotFoundError(f"{folder} has no {file}, which {config} names: save the model again.")
            files.add(file)
    imported = {path for name in files for path in get_relative_import_files(folder / name)}
    return files | {Path(path).relative_to(folder).as_posix() for path in imported}


def check_weights(model: Path, files: dict[str, Path]) -> None:
    """See that a model's weights, or all of their shards, are among the files.

    Raises:
        FileNotFoundError: one of them is not.
        ValueError: the index of the shards is damaged.
    """
    for path in weight_files(model):
        if path not in files.values():
            raise FileNotFoundError(f"{model} has no weights called {path.name}: save the model again.")


def files_of_model(folder: Path) -> dict[str, Path]:
    """What goes of a saved model, by its name on the Hub.

    Raises:
        FileNotFoundError: a part is missing without which nobody can load or understand it.
        ValueError: its config, its tokenizer's, or the index of its weights is damaged.
    """
    files = select_files(folder, (*MODEL_FILES, *sorted(code_of(folder, folder))))
    if "README.md" not in files:
        raise FileNotFoundError(f"{folder} has no README.md: give the folder that a training script has saved.")
    check_weights(folder, files)
    return files


def files_of_repo(folder: Path) -> dict[str, Path]:
    """What goes of a clone of this project, by its name on the Hub.

    The code at its top serves every model in `checkpoints`: `from_pretrained(..., subfolder="checkpoints/en-es")`.

    Raises:
        FileNotFoundError: there is no checkpoint, or a part is missing without which nobody can load one.
        ValueError: a config of one, or the index of its weights, is damaged.
    """
    files = select_files(folder, REPO_FILES)
    if "README.md" not in files or not any(name.startswith("checkpoints/") for name in files):
        raise FileNotFoundError(f"{folder} has no README.md or no checkpoints: give a clone of this project.")
    for model in sorted({path.parent for name, path in files.items() if name.startswith("checkpoints/")}):
        check_weights(model, files)
        code_of(model, folder)
    return files


def files_of_space(folder: Path, checkpoints: bool) -> dict[str, Path]:
    """What goes of the demo, by its name on the Hub; with it the library, which it imports, and the checkpoints.

    Raises:
        FileNotFoundError: a part is missing without which a Space does not start, or shows no model.
    """
    files = select_files(folder, SPACE_FILES)
    for name in ("README.md", "app.py"):
        if name not in files:
            raise FileNotFoundError(f"{folder} has no {name}: give the folder of the demo.")
    shown = select_files(CHECKPOINTS.parent, CHECKPOINT_FILES) if checkpoints else {}
    if checkpoints and not shown:
        raise FileNotFoundError(
            f"There are no models in {CHECKPOINTS} for the Space to show: name some on the Hub with --models, or run "
            "`python -m vanilla_transformer push` in a clone of this project."
        )
    return files | select_files(CHECKPOINTS.parent, LIBRARY_FILES) | shown


def left_out(folder: Path, files: dict[str, Path]) -> list[str]:
    """Files and folders directly in `folder` of which nothing goes."""
    taken = {path.relative_to(folder).parts[0] for path in files.values() if path.is_relative_to(folder)}
    return sorted(path.name for path in folder.iterdir() if path.name not in taken)


def load_card(folder: Path, space: bool, models: list[str]) -> RepoCard:
    """The folder's README.md; for a Space, with the models that it shows in its metadata.

    Raises:
        ValueError: it has no metadata, or some that is not YAML; or it is not one of a Gradio Space.
    """
    try:
        card = (SpaceCard if space else ModelCard).load(folder / "README.md")
    except yaml.YAMLError as error:
        raise ValueError(f"The metadata of {folder / 'README.md'} is not YAML: {error}") from error
    if not card.data.to_dict():
        raise ValueError(f"{folder / 'README.md'} has no metadata: it must begin with YAML between two lines of ---.")
    if space:
        if card.data.to_dict().get("sdk") != "gradio":
            raise ValueError(f"{folder / 'README.md'} is not a Gradio Space: its metadata must say sdk: gradio.")
        if models:
            card.data.models = card.data.preload_from_hub = models
    return card


def describe(folder: Path, files: dict[str, Path]) -> str:
    """What goes, with sizes in bytes, and what does not."""
    sizes = {name: path.stat().st_size for name, path in files.items()}
    lines = [f"{size:>15,}  {name}" for name, size in sizes.items()]
    lines.append(f"{sum(sizes.values()):>15,}  bytes in {len(sizes)} files")
    if others := left_out(folder, files):
        lines.append(f"left out: {', '.join(others)}")
    return "\n".join(lines)


def stale_files(there: list[str], files: dict[str, Path]) -> list[str]:
    """What an earlier model has left on the Hub, and this one does not have, such as weights in other shards.

    `from_pretrained` would read it: the one file of before, for example, rather than the shards of now.
    """
    others = [name for name in there if name not in files and "/" not in name]
    return [name for name in others if any(fnmatchcase(name, pattern) for pattern in READ_IF_THERE)]


def push(args: argparse.Namespace, files: dict[str, Path], card: RepoCard) -> str:
    """Make the repository if it is new, and commit the files to it, of a model in the place of an earlier one's.

    Returns:
        The address of the commit.

    Raises:
        ValueError: the Hub does not accept the card; or the repository is public, but was to be private.
    """
    api = HfApi()
    kind = "space" if args.space else "model"
    card.validate(repo_type=kind)
    repo_id = api.create_repo(
        args.repo_id,
        repo_type=kind,
        private=args.private or None,  # None leaves it to the settings of the account
        exist_ok=True,
        space_sdk="gradio" if args.space else None,
    ).repo_id
    if args.private and not api.repo_info(repo_id, repo_type=kind).private:
        raise ValueError(
            f"{repo_id} exists already and is public: make it private on the Hub first, or choose another."
        )
    if args.revision != "main":
        api.create_branch(repo_id, branch=args.revision, repo_type=kind, exist_ok=True)
    if args.space and args.models:
        api.add_space_variable(repo_id, "MODEL_ID", " ".join(args.models))
    contents: dict[str, str | bytes] = {name: str(path) for name, path in files.items()}
    if args.space:
        if THUMBNAIL in files:  # which a link to the Space shows
            card.data["thumbnail"] = f"{api.endpoint}/spaces/{repo_id}/resolve/{args.revision}/{THUMBNAIL}"
        contents["README.md"] = str(card).encode()
    stale: list[str] = []
    if not (args.space or args.repo):
        stale = stale_files(api.list_repo_files(repo_id, revision=args.revision), files)
    commit = api.create_commit(
        repo_id,
        [
            *(CommitOperationAdd(name, content) for name, content in contents.items()),
            *(CommitOperationDelete(name) for name in stale),
        ],
        commit_message=args.commit_message,
        repo_type=kind,
        revision=args.revision,
    )
    if stale:
        print(f"deleted there, as left by an earlier model: {', '.join(stale)}")
    return commit.commit_url


def main(arguments: list[str] | None = None) -> None:
    """Run the command.

    Raises:
        FileNotFoundError: there is no such folder, or a part is missing from it.
        ValueError: an option of Spaces for a model; a damaged config; a name or a card that the Hub does not take; no
            token of the Hub.
        ConnectionError: the Hub does not answer.
    """
    parser = CommandParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="Folder of the saved model, of the clone, or of the demo.")
    parser.add_argument("repo_id", help="Name on the Hub, as user/name.")
    parser.add_argument("--private", action="store_true", help="Make the repository private.")
    parser.add_argument("--revision", default="main", help="Branch to commit to; created if it does not exist.")
    parser.add_argument("--commit_message", default="Upload with push_to_hub.py", help="Commit message.")
    parser.add_argument("--dry_run", action="store_true", help="List what would be uploaded, and send nothing.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--repo", action="store_true", help="The folder is a clone: upload its code and checkpoints as one repository."
    )
    what.add_argument("--space", action="store_true", help="The folder is the demo: upload it as a Gradio Space.")
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
    if args.space:
        files = files_of_space(args.folder, checkpoints=not args.models)
    else:
        files = (files_of_repo if args.repo else files_of_model)(args.folder)
    card = load_card(args.folder, args.space, args.models)
    print(describe(args.folder, files))
    if args.dry_run:
        print(f"A dry run: nothing was sent to {args.repo_id}.")
        if not (args.space or args.repo):
            print("Files that only an earlier model there has, such as weights in other shards, would be deleted.")
        return
    if get_token() is None:
        raise ValueError("There is no Hub token: run `hf auth login`, or set HF_TOKEN to one with write access.")
    try:
        print(push(args, files, card))
    except HfHubHTTPError:  # its answer
        raise
    except HTTPError as error:
        raise ConnectionError(f"The Hub ({HfApi().endpoint}) does not answer: {error}") from error
