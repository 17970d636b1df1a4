"""Test that workflows, issue forms and hooks are valid, and that version numbers agree."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import files
from pathlib import Path

import pytest
import yaml

from vanilla_transformer.configuration_vanilla_transformer import KNOWN_TO_WORK, OLDEST, __version__


ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(set((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) - {GITHUB / "ISSUE_TEMPLATE/config.yml"})
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pinned(text: str) -> dict[str, str]:
    """Return the versions from lines `name==version`, by package."""
    return dict(re.findall(r"^([\w-]+)==(\S+)$", text, re.M))


def step(workflow: str, name: str) -> str:
    """Return the commands of the workflow step with this name."""
    jobs = yaml.safe_load((GITHUB / "workflows" / workflow).read_text(encoding="utf-8"))["jobs"].values()
    (commands,) = [step["run"] for job in jobs for step in job.get("steps", []) if step.get("name") == name]
    return commands


@pytest.mark.parametrize(
    ("schema", "paths"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("custom.github-workflows-require-timeout", WORKFLOWS),
        ("vendor.github-issue-forms", FORMS),
        ("vendor.github-issue-config", [GITHUB / "ISSUE_TEMPLATE/config.yml"]),
        ("vendor.dependabot", [GITHUB / "dependabot.yml"]),
        ("vendor.citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_github_files_match_their_schema(schema, paths):
    assert paths
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, paths)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr


def test_workflows_have_no_security_findings():
    """zizmor reports excessive permissions, template injection, stored credentials, and unpinned versions."""
    (zizmor,) = [path.locate() for path in files("zizmor") if path.stem == "zizmor"]
    command = [str(zizmor), "--offline", "--strict-collection", "--no-progress", "--color", "never", str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_have_read_only_permissions_by_default(workflow):
    read = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    assert read["permissions"] == {"contents": "read"}
    assert "concurrency" in read
    more = {name: job["permissions"] for name, job in read["jobs"].items() if "permissions" in job}
    allowed = {"release": {"id-token": "write"}, "docs": {"pages": "write", "id-token": "write"}}
    assert more == ({"publish": allowed[workflow.stem]} if workflow.stem in allowed else {})


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_make_targets_and_tests_in_workflows_exist(workflow):
    text = workflow.read_text(encoding="utf-8")
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert set(re.findall(r"run: make ([\w-]+)", text)) <= set(targets)
    for name in re.findall(r"\btests/[\w/.]+", text):
        assert (ROOT / name).exists(), f"{workflow.name}: no {name}"


def test_ci_covers_every_supported_python_and_the_lowest_versions(tmp_path):
    matrix = yaml.safe_load((GITHUB / "workflows/tests.yml").read_text(encoding="utf-8"))["jobs"]["test"]["strategy"][
        "matrix"
    ]
    assert PROJECT["requires-python"] == f">={matrix['python'][0]}"

    constraints = shutil.copy(ROOT / "constraints.txt", tmp_path)
    before = pinned(Path(constraints).read_text(encoding="utf-8"))
    subprocess.run(["bash", "-ec", step("tests.yml", "Lowest supported versions")], cwd=tmp_path, check=True)
    after = pinned(Path(constraints).read_text(encoding="utf-8"))
    lowest = dict(re.match(r"([\w-]+)>=([\d.]+)", requirement).groups() for requirement in PROJECT["dependencies"])
    padded = {name: version + ".0" * (2 - version.count(".")) for name, version in lowest.items()}
    assert after == before | padded


def test_the_space_and_the_hub_page_state_the_same_minimum_versions():
    lowest = dict(re.match(r"([\w-]+)>=([\d.]+)", requirement).groups() for requirement in PROJECT["dependencies"])
    space = dict(
        re.findall(r"^([\w-]+)>=([\d.]+)", (ROOT / "demo/requirements.txt").read_text(encoding="utf-8"), re.M)
    )
    assert {name: space[name] for name in lowest} == lowest
    page = (ROOT / "docs/hub.md").read_text(encoding="utf-8").replace("\n", " ")
    assert lowest["transformers"] == OLDEST  # the minimum version that the model files check
    assert f"need transformers {OLDEST} or newer and PyTorch {lowest['torch']} or newer" in page


@pytest.mark.parametrize("workflow", ["tests.yml", "weekly.yml"])
def test_jobs_with_the_newest_versions_pin_only_linters(workflow, tmp_path):
    constraints = Path(shutil.copy(ROOT / "constraints.txt", tmp_path))
    commands = step(workflow, "Newest versions, except for linters")
    subprocess.run(["bash", "-ec", commands], cwd=tmp_path, check=True)
    assert pinned(constraints.read_text(encoding="utf-8")).keys() == {"mypy", "ruff", "zizmor"}


@pytest.mark.parametrize(("tag", "released"), [("v{}", True), ("{}", True), ("v{}.1", False), ("v0.0.1", False)])
def test_a_release_requires_a_tag_that_matches_the_version(tag, released, tmp_path):
    version = __version__
    (tmp_path / "dist").mkdir()
    (tmp_path / f"dist/vanilla_transformer-{version}-py3-none-any.whl").touch()
    commands = step("release.yml", "Check that the tag equals the version that was built")
    environment = {"GITHUB_REF_NAME": tag.format(version)}
    result = subprocess.run(["/bin/bash", "-ec", commands], cwd=tmp_path, env=environment)
    assert (result.returncode == 0) is released


def test_versions_in_error_messages_match_the_constraints():
    tested = pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    assert {name: tested[name].rpartition(".")[0] for name in KNOWN_TO_WORK} == KNOWN_TO_WORK


def test_the_released_readme_has_absolute_links(tmp_path):
    page = Path(shutil.copy(ROOT / "README.md", tmp_path))
    commands = step("release.yml", "Make the links in the README absolute for PyPI")
    environment = {"GITHUB_REPOSITORY": "user/name", "GITHUB_REF_NAME": "v1.0.0", "PATH": os.environ["PATH"]}
    subprocess.run(["/bin/bash", "-ec", commands], cwd=tmp_path, env=environment, check=True)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Vanilla Transformer\n")
    links = re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'(?:src|srcset|href)="([^"]+)"', text)
    assert len(links) > 20 and all(link.startswith("https://") for link in links)
    assert "https://github.com/user/name/blob/v1.0.0/docs/lessons/README.md" in links


def test_pre_commit_uses_the_ruff_version_of_the_constraints():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    (revision,) = [repository["rev"] for repository in hooks if repository["repo"].endswith("/ruff-pre-commit")]
    assert revision == "v" + pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))["ruff"]


@pytest.mark.parametrize(
    ("message", "accepted"),
    [
        ("training: refuse to resume with another tokenizer\n\nIts ids are others.\n", True),
        ("Merge branch 'types'", True),
        (f"docs: {'x' * 66}\n\n{'y' * 80}\n", True),
        (f"docs: {'x' * 67}\n", False),
        ("Resume refuses another tokenizer\n\ntraining: here it is too late\n", False),
        ("speed: an area that there is not", False),
    ],
)
def test_pre_commit_accepts_subjects_of_72_characters_with_a_documented_area(message, accepted):
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    (hook,) = [hook for repository in hooks for hook in repository["hooks"] if hook["id"] == "subject"]
    assert hook["language"] == "pygrep" and hook["args"] == ["--multiline"] and hook["stages"] == ["commit-msg"]
    assert (re.search(hook["entry"], message, re.MULTILINE | re.DOTALL) is None) == accepted
    areas = re.search(r"\(([a-z|]+)\): ", hook["entry"])[1].split("|")
    told = " ".join((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split())
    assert f"The areas are {', '.join(areas[:-1])} and {areas[-1]}." in told


def test_the_newest_release_in_the_changelog_is_the_current_version():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert headings[0] == "Unreleased"
    dates = [re.fullmatch(r"\d+\.\d+\.\d+ - (\d{4}-\d\d-\d\d)", heading)[1] for heading in headings[1:]]
    assert headings[1].split()[0] == __version__
    assert dates == sorted(dates, reverse=True)
