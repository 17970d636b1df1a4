"""README and the other pages do what they say: their Python runs, what they quote is there, what they name exists.

A block of Python is run, all blocks of a page in one session, and prints what its comments say. Before others stands

    <!-- no-test: reason -->          what it needs cannot be had in a test
    <!-- quoted: module.name -->      it is part of the source of module.name, where a line "..." leaves lines out
"""

import inspect
import json
import pkgutil
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

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
from vanilla_transformer.modeling_vanilla_transformer import sinusoids
from vanilla_transformer.tasks import task_names


ROOT = Path(__file__).parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")))
}


@pytest.mark.parametrize("page", PAGES)
def test_python_runs_and_prints_what_its_comments_say(page, capsys):
    session = {}
    for block in blocks(PAGES[page], "python"):
        if not block.mark.startswith(("no-test: ", "quoted: ")):
            exec(compile(block.code, block.place, "exec"), session)
            assert capsys.readouterr().out.splitlines() == printed(block.code), block.place


QUOTES = [block for page in PAGES for block in blocks(PAGES[page], "python") if block.mark.startswith("quoted: ")]


@pytest.mark.parametrize("block", QUOTES, ids=lambda block: block.place)
def test_quoted_lines_are_in_the_code(block):
    source = inspect.getsource(pkgutil.resolve_name(block.mark.removeprefix("quoted: ")))
    for part in re.split(r"^\.\.\.\n", block.code, flags=re.M):
        indents = {re.match(" *", line)[0] for line in source.splitlines()}
        found = [source.find(textwrap.indent(part, indent)) for indent in indents]
        assert max(found) >= 0, f"{block.mark} has no such lines:\n{part}"
        source = source[max(found) :]


def commands(code: str) -> Iterator[list[str]]:
    """The words of each command, variables replaced by what they hold."""
    pending, variables = "", {}
    for line in code.replace("\\\n", " ").splitlines():
        pending += line + "\n"
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:  # a quotation goes on in the next line
            continue
        pending = ""
        if len(words) == 1 and (assignment := re.fullmatch(r"(\w+)=(.*)", words[0], re.S)):
            variables[f"${assignment[1]}"] = assignment[2].split()
        elif words:
            yield [part for word in words for part in variables.get(word, [word])]


@pytest.mark.parametrize("page", PAGES)
def test_commands_name_scripts_and_make_targets_that_exist(page):
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


# The rest of a command line: a quotation in it may go on in the next line; any other quote ends a string of code.
REST = r'(?:(?<=\s)"[^"]*"|[^\n`"])*'


def quoted_commands() -> Iterator[tuple[str, list[str]]]:
    """Each command line in pages, notebooks, recipes, cards, docstrings and messages: its place and its words."""
    for path in sorted({path for pattern in QUOTING for path in ROOT.glob(pattern)} - {ROOT / "CHANGELOG.md"}):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
        text = re.sub(r"\\\n(# )?", " ", text)
        for name in ("vanilla-transformer", r"scripts/train\.py"):
            for found in re.finditer(rf"(?<!/){name} ((?:{'|'.join([*COMMANDS, *task_names()])})\b{REST})", text):
                line = re.split(r"\s[<>|]\s|\s#|\)|\\n| \.\.\.", found[1])[0].rstrip(" .,:")
                if "[" not in line:  # the usage of a command
                    words = shlex.split(line)
                    yield f"{path.relative_to(ROOT)}: {line}", words if "\\" not in name else ["train", *words]


def test_every_quoted_command_is_one_that_its_parser_takes(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)  # recipes are named from there
    known, found = parsers(), set()
    for parser in known.values():  # a quoted command may leave out what is needed
        for action in parser._actions:
            action.required = False
            action.nargs = "?" if not action.option_strings and action.nargs is None else action.nargs
    for place, (name, *words) in quoted_commands():
        found.add(name)
        if not words or words[0] == "reversal":  # the example of a new task in CONTRIBUTING.md
            continue
        if name == "train":
            named, files, options = data_files(words)  # files that a plan is made for are the user's
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
    """The anchors that GitHub gives to headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(page: Path) -> list[str]:
    """What a page links to or shows, as it stands there."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset|href)="([^"]+)"', text)


@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures_lead_somewhere(page):
    for target in links(PAGES[page]):
        if not re.match(r"\w+:", target):
            name, _, anchor = target.partition("#")
            path = PAGES[page].parent / name if name else PAGES[page]
            assert path.exists(), f"{page}: no {target}"
            assert not anchor or anchor in headings(path), f"{page}: no heading for {target}"


def test_what_the_pages_link_to_and_name_is_on_the_hub_too():
    """All but the tests, which stay with the history, and what is hidden, such as a virtual environment."""
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
def test_a_test_that_is_named_exists_in_the_file_that_is_linked(page):
    text = PAGES[page].read_text(encoding="utf-8")
    for name, file in re.findall(r"\[`(test_\w+)`\]\(([^)]+)\)", text):
        assert f"def {name}(" in (PAGES[page].parent / file).read_text(encoding="utf-8"), f"{file} has no {name}"
    assert not re.findall(r"(?<!\[)`test_\w+`", text), "name a test by a link to its file"


# What docs/walkthrough.md says and no other test shows.


def test_a_dot_product_has_variance_d_k():
    torch.manual_seed(0)
    for d_k in (4, 64, 256):
        query, key = torch.randn(2, 20_000, d_k)
        assert (query * key).sum(dim=-1).var().item() == pytest.approx(d_k, rel=0.05)


def test_the_decoder_reads_its_target_shifted_right():
    model, source = encoder_decoder(), tokens(2, 6)
    labels = torch.tensor([[7, 8, 9, 2], [5, 2, -100, -100]])
    shifted = torch.tensor([[1, 7, 8, 9], [1, 5, 2, 0]])  # 1 starts a target, 0 is padding
    assert torch.equal(model.prepare_decoder_input_ids_from_labels(labels), shifted)
    torch.testing.assert_close(model(source, labels=labels).logits, model(source, decoder_input_ids=shifted).logits)


def test_logits_are_the_decoders_output_times_the_embedding():
    model, ids = encoder_decoder(), tokens()
    states = model.model(ids, decoder_input_ids=ids).last_hidden_state
    logits = model(ids, decoder_input_ids=ids).logits
    torch.testing.assert_close(logits, states @ model.get_input_embeddings().weight.T)
    assert (logits.exp().sum(dim=-1) - 1).abs().min() > 0.1  # not logarithms of probabilities


def test_dropout_acts_on_the_sum_of_scaled_embedding_and_position():
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
def test_each_layer_reaches_one_neighbourhood_further(layers):
    """With a window of 4, two positions on either side: the first output depends on 2 * layers positions after it."""
    torch.manual_seed(0)
    model = encoder_only(VanillaTransformerEncoderModel, sliding_window=4, num_layers=layers)
    embeddings = torch.randn(1, 12, 32, requires_grad=True)
    model(inputs_embeds=embeddings).last_hidden_state[0, 0].pow(3).sum().backward()
    reached = embeddings.grad[0].abs().amax(dim=-1) > 0
    assert reached.tolist() == [position <= 2 * layers for position in range(12)]
