"""Run a small Hugging Face Hub on localhost, with the HTTP endpoints that the real client uses.

    with HubServer() as hub:
        ...  # processes with hub.environment(home) use it
        hub.repos["models", "user/name"].files("main")

The server supports model and Space repositories with branches and commits, regular and LFS files, private
repositories, variables, and validation of card metadata. `TOKEN` gives write access. All data is kept in memory.
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
ROUTES: list[tuple[str, re.Pattern, Callable]] = []  # (methods, path pattern, handler)


def route(methods: str, path: str) -> Callable[[Callable], Callable]:
    """Register a handler for paths that match. It receives {kind}, {name}, {revision} and {rest} from the path."""
    parts = {"kind": "(models|spaces|datasets)", "name": "([^/]+/[^/]+?)", "revision": "([^/]+)", "rest": "(.+)"}

    def register(function: Callable) -> Callable:
        ROUTES.append((methods, re.compile(path.format(**parts)), function))
        return function

    return register


class HubError(Exception):
    """An error response with an HTTP status, a code for the X-Error-Code header, and additional headers."""

    def __init__(self, status: int, code: str, message: str = "", **headers: str):
        super().__init__(message or code)
        self.status, self.headers = status, {"X-Error-Code": code, "X-Error-Message": str(self), **headers}


@dataclass
class Repo:
    private: bool
    sdk: str | None
    branches: dict[str, str] = field(default_factory=dict)  # branch -> commit
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)  # commit -> path -> content
    lfs_paths: set[str] = field(default_factory=set)
    variables: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        commit = hashlib.sha1(str(len(self.commits)).encode()).hexdigest()
        self.commits[commit], self.branches[branch] = files, commit
        return commit

    def resolve(self, revision: str) -> str:
        """Resolve a branch name or commit hash to a commit hash."""
        commit = self.branches.get(revision, revision)
        if commit not in self.commits:
            raise HubError(404, "RevisionNotFound")
        return commit

    def files(self, revision: str) -> dict[str, bytes]:
        return self.commits[self.resolve(revision)]


class HubServer:
    """The server and its repositories. The server runs inside the `with` block."""

    def __init__(self):
        self.repos: dict[tuple[str, str], Repo] = {}  # ("models" or "spaces", "user/name") -> repository
        self.lfs: dict[str, bytes] = {}  # sha256 -> content

    def __enter__(self) -> Self:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (HubHandler,), {"hub": self}))
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error) -> None:
        self.server.shutdown()
        self.server.server_close()

    def environment(self, home: Path, token: str | None = TOKEN) -> dict[str, str]:
        """Return environment variables that make a process use this server, and `home` as its cache."""
        variables = {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
        return variables if token is None else variables | {"HF_TOKEN": token}


class HubHandler(BaseHTTPRequestHandler):
    """Handle requests. Handlers registered with `route` return JSON, or bytes with headers."""

    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, *args) -> None: ...

    def answer(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = unquote(urlsplit(self.path).path)
        try:
            for methods, pattern, function in ROUTES:
                if self.command in methods.split() and (match := pattern.fullmatch(path)):
                    return self.send(200, function(self, *match.groups()))
            raise HubError(404, "EntryNotFound", f"no such endpoint: {self.command} {path}")
        except HubError as error:
            self.send(error.status, (json.dumps({"error": str(error)}).encode(), error.headers))

    do_GET = do_HEAD = do_POST = do_PUT = answer

    def send(self, status: int, content: Any) -> None:
        data, headers = content if isinstance(content, tuple) else (json.dumps(content).encode(), {})
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def require_token(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise HubError(401, "Unauthorized", "Invalid credentials")

    def repo(self, kind: str, name: str) -> Repo:
        if self.command in ("POST", "PUT"):
            self.require_token()
        repo = self.hub.repos.get((kind, name))
        if repo is None or (repo.private and self.headers.get("Authorization") != f"Bearer {TOKEN}"):
            raise HubError(404, "RepoNotFound")
        return repo

    @route("GET", "/api/whoami-v2")
    def whoami(self):
        self.require_token()
        return {"type": "user", "name": "user", "orgs": [], "auth": {"accessToken": {"role": "write"}}}

    @route("POST", "/api/repos/create")
    def create(self):
        self.require_token()
        asked = json.loads(self.body)
        kind, name = f"{asked.get('type', 'model')}s", f"{asked.get('organization') or 'user'}/{asked['name']}"
        if (kind, name) not in self.hub.repos:
            repo = self.hub.repos[kind, name] = Repo(asked.get("visibility") == "private", asked.get("sdk"))
            repo.commit("main", {})
        return {"url": f"{self.hub.url}/{'' if kind == 'models' else f'{kind}/'}{name}"}

    @route("POST", "/api/validate-yaml")
    def validate(self):
        parts = json.loads(self.body)["content"].split("---\n", 2)
        try:
            data = yaml.safe_load(parts[1]) if len(parts) == 3 and not parts[0] else None
            if not isinstance(data, dict):
                raise ValueError("the card has no metadata")
            if "model-index" in data:
                model_index_to_eval_results(data["model-index"])
            for name in ("license", "pipeline_tag", "library_name", "sdk", "title"):
                if not isinstance(data.get(name, ""), str):
                    raise ValueError(f"{name} must be a string")
        except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
            raise HubError(400, "BadRequest", f"{type(error).__name__}: {error}") from error
        return {"errors": [], "warnings": []}

    @route("POST", "/api/{kind}/{name}/branch/{revision}")
    def branch(self, kind, name, revision):
        repo = self.repo(kind, name)
        repo.branches.setdefault(revision, repo.resolve("main"))
        return {}

    @route("POST", "/api/{kind}/{name}/variables")
    def add_variable(self, kind, name):
        asked, variables = json.loads(self.body), self.repo(kind, name).variables
        variables[asked["key"]] = asked["value"]
        return {key: {"value": value} for key, value in variables.items()}

    @route("POST", "/api/{kind}/{name}/preupload/{revision}")
    def preupload(self, kind, name, revision):
        self.repo(kind, name).resolve(revision)
        paths = [file["path"] for file in json.loads(self.body)["files"]]
        modes = {path: "lfs" if path.endswith((".safetensors", ".png")) else "regular" for path in paths}
        return {"files": [{"path": p, "uploadMode": mode, "shouldIgnore": False} for p, mode in modes.items()]}

    @route("POST", "/(?:(spaces)/)?{name}[.]git/info/lfs/objects/batch")
    def lfs_batch(self, kind, name):
        self.repo(kind or "models", name)
        wanted = json.loads(self.body)["objects"]
        actions = [{"upload": {"href": f"{self.hub.url}/lfs/{one['oid']}"}} for one in wanted]
        return {"transfer": "basic", "objects": [one | {"actions": a} for one, a in zip(wanted, actions, strict=True)]}

    @route("PUT", "/lfs/{revision}")
    def lfs_upload(self, oid):
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise HubError(422, "BadRequest", f"the content is not {oid}")
        self.hub.lfs[oid] = self.body
        return {}

    @route("POST", "/api/{kind}/{name}/commit/{revision}")
    def commit(self, kind, name, revision):
        repo = self.repo(kind, name)
        files = dict(repo.files(revision))
        for entry in map(json.loads, self.body.splitlines()):
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.lfs[value["oid"]]
                repo.lfs_paths.add(value["path"])
            elif entry["key"] == "deletedFile" and files.pop(value["path"], None) is None:
                raise HubError(404, "EntryNotFound", "A file with this name doesn't exist")
        commit = repo.commit(revision, files)
        return {"commitUrl": f"{self.hub.url}/{name}/commit/{commit}", "commitOid": commit}

    @route("GET", "/api/{kind}/{name}(?:/revision/{revision})?")
    def info(self, kind, name, revision):
        repo = self.repo(kind, name)
        siblings = [{"rfilename": path} for path in repo.files(revision or "main")]
        commit = repo.resolve(revision or "main")
        return {"id": name, "modelId": name, "sha": commit, "private": repo.private, "siblings": siblings}

    @route("GET", "/api/{kind}/{name}/tree/{revision}(?:/{rest})?")
    def tree(self, kind, name, revision, folder):
        inside = f"{folder}/" if folder else ""
        files = {path: each for path, each in self.repo(kind, name).files(revision).items() if path.startswith(inside)}
        if folder and not files:
            raise HubError(404, "EntryNotFound")
        found = [{"type": "file", "path": path, "size": len(each), "oid": "0" * 40} for path, each in files.items()]
        if "recursive=true" in self.path.lower():
            return found
        here = [one for one in found if "/" not in one["path"].removeprefix(inside)]
        folders = {inside + path.removeprefix(inside).split("/")[0] for path in files} - {*files}
        return here + [{"type": "directory", "path": path, "oid": "0" * 40} for path in sorted(folders)]

    @route("GET HEAD", "/(?:(spaces|datasets)/)?{name}/resolve/{revision}/{rest}")
    def download(self, kind, name, revision, path):
        repo = self.repo(kind or "models", name)
        headers = {"X-Repo-Commit": repo.resolve(revision)}  # clients cache even that a file is missing
        content = repo.files(revision).get(path)
        if content is None:
            raise HubError(404, "EntryNotFound", **headers)
        headers["ETag"] = f'"{hashlib.sha1(content).hexdigest()}"'
        if path in repo.lfs_paths:
            checksum = hashlib.sha256(content).hexdigest()
            headers |= {"X-Linked-Etag": f'"{checksum}"', "X-Linked-Size": str(len(content))}
        return content, headers
