"""A small Hugging Face Hub on loopback: enough of its HTTP interface for the real client to upload and download.

    with HubServer() as hub:
        environment = hub.environment(home)      # for a process that is to use it
        ...
        hub.repos["models", "user/name"].files("main")

Repositories of models and Spaces with branches and commits, regular and LFS files, visibility, Space variables, and the
check of a card's metadata. Whoever has the token may write, and read what is private. All of it lives in memory.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import yaml
from huggingface_hub.repocard_data import model_index_to_eval_results


TOKEN = "hf_of_the_test_server"
LFS_SUFFIXES = (".safetensors", ".png")


class HubError(Exception):
    """An answer that is not a success: a status, and what the Hub's header X-Error-Code says."""

    def __init__(self, status: int, code: str, message: str = ""):
        super().__init__(message or code)
        self.status, self.code = status, code


@dataclass
class Repo:
    private: bool
    sdk: str | None
    branches: dict[str, str] = field(default_factory=dict)  # branch -> commit
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)  # commit -> path -> content
    lfs_paths: set[str] = field(default_factory=set)
    variables: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        commit = hashlib.sha1(f"{branch} {len(self.commits)}".encode()).hexdigest()
        self.commits[commit] = files
        self.branches[branch] = commit
        return commit

    def resolve(self, revision: str) -> str:
        """The commit that a branch or a commit id names."""
        commit = self.branches.get(revision, revision)
        if commit not in self.commits:
            raise HubError(404, "RevisionNotFound")
        return commit

    def files(self, revision: str) -> dict[str, bytes]:
        return self.commits[self.resolve(revision)]


def check_card(content: str) -> list[str]:
    """What is wrong with the metadata of a card."""
    parts = content.split("---\n")
    try:
        data = yaml.safe_load(parts[1]) if content.startswith("---\n") and len(parts) > 2 else None
        if not isinstance(data, dict):
            return ["the card has no metadata"]
        if "model-index" in data:
            model_index_to_eval_results(data["model-index"])
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        return [f"{type(error).__name__}: {error}"]
    texts = ("license", "pipeline_tag", "library_name", "sdk", "title")
    return [f'"{name}" must be a string' for name in texts if not isinstance(data.get(name, ""), str)]


class HubServer:
    """The server and what it holds, from `with` until its end."""

    def __init__(self):
        self.repos: dict[tuple[str, str], Repo] = {}  # ("models" or "spaces", "user/name") -> its repository
        self.lfs: dict[str, bytes] = {}  # sha256 -> content
        self.log: list[str] = []

    def __enter__(self) -> Self:
        handler = type("Handler", (HubHandler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error) -> None:
        self.server.shutdown()
        self.server.server_close()

    def environment(self, home: Path, token: str | None = TOKEN) -> dict[str, str]:
        """Variables that make the real client in a new process use this server, with an empty cache in `home`."""
        variables = {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
        return variables | ({} if token is None else {"HF_TOKEN": token})

    def repo(self, kind: str, name: str) -> Repo:
        if (kind, name) not in self.repos:
            raise HubError(404, "RepoNotFound")
        return self.repos[kind, name]


class HubHandler(BaseHTTPRequestHandler):
    """One request. `routes` below says which method answers which path."""

    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, *args) -> None: ...

    def read_json(self) -> Any:
        return json.loads(self.body)

    def authorized(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def find(self, kind: str, name: str, write: bool = False) -> Repo:
        if write and not self.authorized():
            raise HubError(401, "Unauthorized", "Invalid credentials")
        repo = self.hub.repo(kind, name)
        if repo.private and not self.authorized():
            raise HubError(404, "RepoNotFound")
        return repo

    def answer(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = unquote(urlsplit(self.path).path)
        self.hub.log.append(f"{self.command} {path}")
        try:
            for method, pattern, action in ROUTES:
                match = re.fullmatch(pattern, path)
                if match and self.command in method.split():
                    self.send(200, *action(self, **match.groupdict()))
                    return
            raise HubError(404, "EntryNotFound", f"no such endpoint: {self.command} {path}")
        except HubError as error:
            headers = {"X-Error-Code": error.code, "X-Error-Message": str(error), "X-Repo-Commit": "0" * 40}
            self.send(error.status, {"error": str(error)}, headers)

    do_GET = do_HEAD = do_POST = do_PUT = answer

    def send(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    # What the endpoints do. Each gives the content of its answer and, where there are any, its headers.

    def whoami(self):
        if not self.authorized():
            raise HubError(401, "Unauthorized", "Invalid credentials")
        return ({"type": "user", "name": "user", "orgs": [], "auth": {"accessToken": {"role": "write"}}},)

    def create(self):
        if not self.authorized():
            raise HubError(401, "Unauthorized", "Invalid credentials")
        asked = self.read_json()
        kind = f"{asked.get('type', 'model')}s"
        name = f"{asked.get('organization') or 'user'}/{asked['name']}"
        if (kind, name) not in self.hub.repos:
            repo = Repo(asked.get("visibility") == "private", asked.get("sdk"))
            repo.commit("main", {".gitattributes": b""})
            self.hub.repos[kind, name] = repo
        return ({"url": f"{self.hub.url}/{'' if kind == 'models' else kind + '/'}{name}"},)

    def validate(self):
        errors = check_card(self.read_json()["content"])
        if errors:
            raise HubError(400, "BadRequest", "; ".join(errors))
        return ({"errors": [], "warnings": []},)

    def branch(self, kind, name, revision):
        repo = self.find(kind, name, write=True)
        repo.branches.setdefault(revision, repo.resolve("main"))
        return ({},)

    def variables(self, name):
        repo, asked = self.find("spaces", name, write=True), self.read_json()
        repo.variables[asked["key"]] = asked["value"]
        return ({key: {"key": key, "value": value} for key, value in repo.variables.items()},)

    def preupload(self, kind, name, revision):
        self.find(kind, name, write=True).resolve(revision)
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(LFS_SUFFIXES) else "regular",
                "shouldIgnore": False,
                "oid": None,
            }
            for file in self.read_json()["files"]
        ]
        return ({"files": files},)

    def lfs_batch(self, kind, name):
        self.find(kind or "models", name, write=True)
        objects = [
            {"oid": o["oid"], "size": o["size"], "actions": {"upload": {"href": f"{self.hub.url}/lfs/{o['oid']}"}}}
            for o in self.read_json()["objects"]
        ]
        return ({"transfer": "basic", "objects": objects},)

    def lfs_upload(self, oid):
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise HubError(422, "BadRequest", f"the content is not {oid}")
        self.hub.lfs[oid] = self.body
        return ({},)

    def commit(self, kind, name, revision):
        repo = self.find(kind, name, write=True)
        files = dict(repo.files(revision))
        for line in self.body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.lfs[value["oid"]]
                repo.lfs_paths.add(value["path"])
        commit = repo.commit(revision, files)
        return ({"commitUrl": f"{self.hub.url}/{name}/commit/{commit}", "commitOid": commit},)

    def info(self, kind, name, revision="main"):
        repo = self.find(kind, name)
        siblings = [{"rfilename": path} for path in repo.files(revision)]
        return (
            {
                "id": name,
                "modelId": name,
                "sha": repo.resolve(revision),
                "private": repo.private,
                "siblings": siblings,
            },
        )

    def tree(self, kind, name, revision, folder=None):
        files = self.find(kind, name).files(revision)
        if folder is not None:
            raise HubError(404, "EntryNotFound")
        return ([{"type": "file", "path": p, "size": len(c), "oid": git_hash(c)} for p, c in files.items()],)

    def download(self, kind, name, revision, path):
        repo = self.find(kind or "models", name)
        content = repo.files(revision).get(path)
        if content is None:
            raise HubError(404, "EntryNotFound")
        headers = {"X-Repo-Commit": repo.resolve(revision), "ETag": f'"{git_hash(content)}"'}
        if path in repo.lfs_paths:
            etag = hashlib.sha256(content).hexdigest()
            headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(content))}
        return content, headers


def git_hash(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


KIND = r"/api/(?P<kind>models|spaces)/(?P<name>[^/]+/[^/]+)"
ROUTES: list[tuple[str, str, Callable]] = [
    ("GET", "/api/whoami-v2", HubHandler.whoami),
    ("POST", "/api/repos/create", HubHandler.create),
    ("POST", "/api/validate-yaml", HubHandler.validate),
    ("POST", rf"{KIND}/branch/(?P<revision>.+)", HubHandler.branch),
    ("POST", r"/api/spaces/(?P<name>[^/]+/[^/]+)/variables", HubHandler.variables),
    ("POST", rf"{KIND}/preupload/(?P<revision>.+)", HubHandler.preupload),
    ("POST", r"/(?:(?P<kind>spaces)/)?(?P<name>[^/]+/[^/]+)\.git/info/lfs/objects/batch", HubHandler.lfs_batch),
    ("PUT", "/lfs/(?P<oid>[0-9a-f]{64})", HubHandler.lfs_upload),
    ("POST", rf"{KIND}/commit/(?P<revision>.+)", HubHandler.commit),
    ("GET", rf"{KIND}(?:/revision/(?P<revision>[^/]+))?", lambda self, kind, name, revision: self.info(kind, name, revision or "main")),
    ("GET", rf"{KIND}/tree/(?P<revision>[^/]+)(?:/(?P<folder>.+))?", HubHandler.tree),
    ("GET HEAD", r"/(?:(?P<kind>spaces)/)?(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)", HubHandler.download),
]  # fmt: skip
