"""Test the documentation: its Python code runs, and the code, files and commands that it quotes exist.

The Python blocks of a page run in one session and must print what their comments say. A comment can precede a block:

    <!-- no-test: reason -->          the block is not run, because a test cannot provide what it needs
    <!-- quoted: module.name -->      the block is part of the source of module.name; "..." stands for omitted lines
"""

import inspect
import json
import pkgutil
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
import torch

from code_blocks import blocks, printed
from documentation.command_help import parsers
from family import encoder_decoder, encoder_only, tokens
from vanilla_transformer import VanillaTransformerEncoderModel
from vanilla_transformer.__main__ import COMMANDS, known_options
from vanilla_transformer.cli.help import check_names, is_option
from vanilla_transformer.cli.push import REPO_FILES, select_files
from vanilla_transformer.cli.recipes import choose_task, data_files, is_recipe
from vanilla_transformer.files import shipped_models
from vanilla_transformer.modeling_vanilla_transformer import sinusoids
from vanilla_transformer.tasks import task_names


ROOT = Path(__file__).parent.parent
EXPLORER = ROOT / "vanilla_transformer" / "inside" / "explorer"
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for pattern in ("*.md", "docs/*.md", "docs/lessons/*.md")
    for path in sorted(ROOT.glob(pattern))
}


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run_and_print_what_their_comments_say(page, capsys):
    session = {}
    torch.set_printoptions(profile="default")  # blocks of another page may have changed them
    for block in blocks(PAGES[page], "python"):
        if not block.mark.startswith(("no-test: ", "quoted: ")):
            exec(compile(block.code, block.place, "exec"), session)
            assert capsys.readouterr().out.splitlines() == printed(block.code), block.place


QUOTES = [block for page in PAGES for block in blocks(PAGES[page], "python") if block.mark.startswith("quoted: ")]


@pytest.mark.parametrize("block", QUOTES, ids=lambda block: block.place)
def test_quoted_lines_exist_in_the_code(block):
    source = inspect.getsource(pkgutil.resolve_name(block.mark.removeprefix("quoted: ")))
    for part in re.split(r"^\.\.\.\n", block.code, flags=re.M):
        indents = {re.match(" *", line)[0] for line in source.splitlines()}
        found = [source.find(textwrap.indent(part, indent)) for indent in indents]
        assert max(found) >= 0, f"{block.mark} has no such lines:\n{part}"
        source = source[max(found) :]


def commands(code: str) -> Iterator[list[str]]:
    """Yield the words of each shell command, with variables replaced by their values."""
    pending, variables = "", {}
    for line in code.replace("\\\n", " ").splitlines():
        pending += line + "\n"
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:  # a quoted argument may continue in the next line
            continue
        pending = ""
        if len(words) == 1 and (assignment := re.fullmatch(r"(\w+)=(.*)", words[0], re.S)):
            variables[f"${assignment[1]}"] = assignment[2].split()
        elif words:
            yield [part for word in words for part in variables.get(word, [word])]


@pytest.mark.parametrize("page", PAGES)
def test_scripts_and_make_targets_in_commands_exist(page):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    for block in blocks(PAGES[page], "bash"):
        for words in commands(block.code):
            if words[0] == "make":
                assert set(words[1:2]) <= set(targets), block.place
            for word in words:
                assert not word.endswith(".py") or (ROOT / word).is_file(), f"{block.place}: no {word}"


QUOTING = (
    "*.md", "docs/**/*.md", "docs/**/*.py", "docs/**/*.ipynb", "demo/*.md", "recipes/**/*.yaml", "recipes/**/*.md",
    "checkpoints/*/README.md", "launch/*", "scripts/**/*.py", "vanilla_transformer/**/*.py",
    "vanilla_transformer/**/*.js",
)  # fmt: skip


# The rest of a command line. A quoted argument may contain line breaks; any other quotation mark ends the command.
REST = r'(?:(?<=\s)"[^"]*"|[^\n`"])*'


def quoted_commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the location and arguments of each command line in the docs, recipes, cards, docstrings and messages."""
    for path in sorted({path for pattern in QUOTING for path in ROOT.glob(pattern)} - {ROOT / "CHANGELOG.md"}):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
        text = re.sub(r"\\\n(# )?", " ", text)
        for name in ("vanilla-transformer", r"scripts/train\.py"):
            for found in re.finditer(rf"(?<!/){name} ((?:{'|'.join([*COMMANDS, *task_names()])})\b{REST})", text):
                line = re.split(r"\s[<>|]\s|\s#|\)|\\n| \.\.\.", found[1])[0].rstrip(" .,:")
                if "[" not in line:  # skip usage messages
                    words = shlex.split(line)
                    yield f"{path.relative_to(ROOT)}: {line}", words if "\\" not in name else ["train", *words]


def test_every_quoted_command_is_accepted_by_its_parser(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)  # recipe paths are relative to the root
    known, found = parsers(), set()
    for parser in known.values():  # quoted commands may omit required options
        for action in parser._actions:
            action.required = False
            action.nargs = "?" if not action.option_strings and action.nargs is None else action.nargs
    for place, (name, *words) in quoted_commands():
        found.add(name)
        if not words or words[0] == "reversal":  # "reversal" is the example of a new task in CONTRIBUTING.md
            continue
        if name == "train":
            named, files, options = data_files(words)  # without a task, `train` plans for a file of the user
            task, words = (named or "translation", options) if files else choose_task(words)
            name = f"train {task}"
            words = words[1:] if words and is_recipe(words[0]) else words
        try:
            _, unknown = known[name].parse_known_args(words)
        except SystemExit:
            pytest.fail(f"{place}: {capsys.readouterr().err}")
        check_names(unknown, known_options(name) or ())
        assert all(is_option(word) for word in unknown[:1]), place
    assert found == COMMANDS.keys()


def headings(page: Path) -> set[str]:
    """Return the anchors that GitHub generates for the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def opens_a_state(anchor: str) -> bool:
    """Whether the explorer's page, as part of the site, knows the tour's stop and the model in an address."""
    stops = re.findall(r'^  "?([a-z-]+)"?: \{$', (EXPLORER / "tour.js").read_text(encoding="utf-8"), re.M)
    kind, _, value = anchor.partition("=")
    state = json.loads(unquote(value)) if kind == "explore" else {"tour": value.removesuffix("&present")}
    known = {"model": [Path(folder).name for folder in shipped_models()], "tour": stops}
    return all(state[name] in known[name] for name in known.keys() & state.keys())


def links(page: Path) -> list[str]:
    """Return the targets of the links and images on a page."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset|href)="([^"]+)"', text)


@pytest.mark.parametrize("page", PAGES)
def test_links_and_images_exist(page):
    for target in links(PAGES[page]):
        if not re.match(r"\w+:", target):
            name, _, anchor = target.partition("#")
            path = PAGES[page].parent / name if name else PAGES[page]
            assert path.exists(), f"{page}: no {target}"
            if re.match(r"(?:explore|tour)=", anchor):
                assert path.name == "explorer.md" and opens_a_state(anchor), f"{page}: no state for {target}"
            else:
                assert not anchor or anchor in headings(path), f"{page}: no heading for {target}"


def test_files_mentioned_in_pages_are_uploaded_to_the_hub():
    """Tests and hidden files, such as a virtual environment, are not uploaded."""
    sent = select_files(ROOT, REPO_FILES)
    missing = set()
    for page in (path for name, path in sent.items() if name.endswith(".md")):
        named = re.findall(r"[\w.-]+(?:/[\w.-]+)+", page.read_text(encoding="utf-8"))
        places = {(page.parent / target.partition("#")[0]).resolve() for target in links(page)}
        places |= {(ROOT / name).resolve() for name in named}
        files = {path.relative_to(ROOT).as_posix() for path in places if path.is_file() and path.is_relative_to(ROOT)}
        missing |= {name for name in files - sent.keys() if not name.startswith(("tests/", "."))}
    assert "docs/notebooks/look_inside.ipynb" in sent and missing == set()


@pytest.mark.parametrize("page", PAGES)
def test_tests_mentioned_in_pages_exist_in_the_linked_file(page):
    text = PAGES[page].read_text(encoding="utf-8")
    for name, file in re.findall(r"\[`(test_\w+)`\]\(([^)]+)\)", text):
        assert f"def {name}(" in (PAGES[page].parent / file).read_text(encoding="utf-8"), f"{file} has no {name}"
    assert not re.findall(r"(?<!\[)`test_\w+`", text), "name a test by a link to its file"


# --- Claims of the lessons that no other test covers


def test_a_dot_product_has_variance_d_k():
    torch.manual_seed(0)
    for d_k in (4, 64, 256):
        query, key = torch.randn(2, 20_000, d_k)
        assert (query * key).sum(dim=-1).var().item() == pytest.approx(d_k, rel=0.05)


def test_the_decoder_reads_its_target_shifted_right():
    model, source = encoder_decoder(), tokens(2, 6)
    labels = torch.tensor([[7, 8, 9, 2], [5, 2, -100, -100]])
    shifted = torch.tensor([[1, 7, 8, 9], [1, 5, 2, 0]])  # 1 is the start token, 0 is padding
    assert torch.equal(model.prepare_decoder_input_ids_from_labels(labels), shifted)
    torch.testing.assert_close(model(source, labels=labels).logits, model(source, decoder_input_ids=shifted).logits)


def test_logits_equal_the_decoders_output_times_the_embedding():
    model, ids = encoder_decoder(), tokens()
    states = model.model(ids, decoder_input_ids=ids).last_hidden_state
    logits = model(ids, decoder_input_ids=ids).logits
    torch.testing.assert_close(logits, states @ model.get_input_embeddings().weight.T)
    assert (logits.exp().sum(dim=-1) - 1).abs().min() > 0.1  # the logits are not normalised


def test_dropout_applies_to_the_sum_of_embedding_and_position():
    torch.manual_seed(0)
    stack, embeddings = encoder_only(VanillaTransformerEncoderModel, dropout=0.5), torch.randn(2, 50, 32)
    positions = torch.arange(50)[None]
    total = embeddings * 32**0.5 + sinusoids(positions, 32)
    torch.testing.assert_close(stack.add_positions(embeddings, positions), total)
    dropped = stack.train().add_positions(embeddings, positions)
    kept = dropped != 0
    assert kept.float().mean().item() == pytest.approx(0.5, abs=0.05)
    torch.testing.assert_close(dropped[kept], 2 * total[kept])


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_each_layer_extends_the_reach_of_a_window(layers):
    """A window of 4 reaches 2 positions to either side, so the first output depends on 2 * layers later positions."""
    torch.manual_seed(0)
    model = encoder_only(VanillaTransformerEncoderModel, sliding_window=4, num_layers=layers)
    embeddings = torch.randn(1, 12, 32, requires_grad=True)
    model(inputs_embeds=embeddings).last_hidden_state[0, 0].pow(3).sum().backward()
    reached = embeddings.grad[0].abs().amax(dim=-1) > 0
    assert reached.tolist() == [position <= 2 * layers for position in range(12)]
