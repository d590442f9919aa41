"""Pull the Hub's most-used models: pinned commits and configuration files, never weights."""

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec
from huggingface_hub import (
    HfApi,
    errors,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    set_client_factory,
    try_to_load_from_cache,
)
from huggingface_hub.hf_api import ModelInfo
from huggingface_hub.utils import disable_progress_bars, logging, parse_ratelimit_headers
from huggingface_hub.utils._http import default_client_factory, hf_request_event_hook
from tenacity import RetryCallState

from compilewatch.errors import ConfigError, SourceError, UsageError
from compilewatch.files import json_object, read_json_object, write_atomically
from compilewatch.retry import TransientError, retrying
from compilewatch.sources.hub import pulled as lists
from compilewatch.sources.hub import repositories
from compilewatch.sources.hub.formats import kept_files, kept_tags


def problem_of(exc: Exception) -> str:
    """Return why a model has no configuration, as a skip reason."""
    match exc:
        case ConfigError():
            return f"malformed configuration: {exc}"
        case errors.GatedRepoError():
            return "gated: accept its terms on the Hub and set HF_TOKEN"
        case errors.RepositoryNotFoundError():
            return "private or deleted"
        case errors.DisabledRepoError():
            return "disabled by the Hub"
        case errors.RevisionNotFoundError():
            return "its commit was deleted: pull again"
        case errors.RemoteEntryNotFoundError():
            return "it has no config.json"
        case errors.HfHubHTTPError() if exc.response.status_code in (401, 403):
            return "access denied: check HF_TOKEN"
    return f"its configuration cannot be downloaded: {one_line(exc)}"


def one_line(exc: BaseException) -> str:
    """Return the message of an error as one line."""
    return " ".join(str(exc).split()) or type(exc).__name__


Notice = Callable[[str], None]
"""Told, in one line, each time that a request failed and is made again."""

_TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504})


ATTEMPTS = 5
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 60.0
"""Waits double up to this; a request for which a server demands a longer one fails."""

TIMEOUT_SECONDS = 20.0
"""Of each wait for the server."""


class HubUnavailableError(SourceError):
    """The Hub was unreachable, or rejected requests, for longer than the limits allow."""


class _RetryingClient(httpx2.Client):
    """The client below huggingface_hub, with the project's retry policy.

    huggingface_hub retries by itself, but without limits that suit an interactive tool: it waits as
    long as `Retry-After` says, five times, and lists models without a timeout (huggingface_hub 2.4,
    `utils/_http.py`). It does not retry the errors that this policy raises.
    """

    def __init__(self, stopped: threading.Event, notice: Notice) -> None:
        super().__init__(
            event_hooks={"request": [hf_request_event_hook]},
            follow_redirects=True,
            timeout=TIMEOUT_SECONDS,
        )
        self._stopped = stopped
        self._notice = notice
        # huggingface_hub sends several requests for one call; they share the attempts.
        self._unreachable: dict[str, str] = {}

    def send(self, request: httpx2.Request, **kwargs: Any) -> httpx2.Response:
        host = request.url.host
        # Callers pass timeout=None, which would disable the client's own timeout.
        request.extensions["timeout"] = httpx2.Timeout(TIMEOUT_SECONDS).as_dict()

        def tell(state: RetryCallState) -> None:
            failure = state.outcome.exception() if state.outcome else None
            again = f"attempt {state.attempt_number + 1} of {ATTEMPTS}"
            self._notice(f"{host}: {failure}; {again}")

        def sleep(seconds: float) -> None:
            self._stopped.wait(seconds)  # ends early if the pull is stopped

        repeated = retrying(
            attempts=ATTEMPTS,
            first_wait_seconds=FIRST_WAIT_SECONDS,
            longest_wait_seconds=LONGEST_WAIT_SECONDS,
            sleep=sleep,
        ).copy(before_sleep=tell)
        try:
            return repeated(self._attempt, request, **kwargs)
        except TransientError as exc:
            message = f"{host}: {exc}"
            if isinstance(exc.__cause__, httpx2.ConnectError):
                self._unreachable[host] = message
            raise HubUnavailableError(message) from exc

    def _attempt(self, request: httpx2.Request, **kwargs: Any) -> httpx2.Response:
        host = request.url.host
        if self._stopped.is_set():
            raise HubUnavailableError(f"{host}: given up")
        if (message := self._unreachable.get(host)) is not None:
            raise HubUnavailableError(message)
        try:
            response = super().send(request, **kwargs)
        except httpx2.TimeoutException as exc:
            raise TransientError(f"no response within {TIMEOUT_SECONDS:g} s") from exc
        except httpx2.TransportError as exc:
            raise TransientError(f"cannot be reached ({exc})") from exc
        if response.status_code not in _TRANSIENT_STATUS:
            return response
        response.close()
        if response.status_code != 429:
            raise TransientError(f"responds {response.status_code} {response.reason_phrase}")
        wait, hint = _retry_after(response), "a token (HF_TOKEN) has a higher limit"
        if wait is not None and wait > LONGEST_WAIT_SECONDS:
            self._stopped.set()
            raise HubUnavailableError(f"{host}: rate limit reached, wait {wait:g} s; {hint}")
        raise TransientError(f"rate limit reached; {hint}", wait)


def _retry_after(response: httpx2.Response) -> float | None:
    """Return the seconds of `Retry-After`; an HTTP date is ignored, as in huggingface_hub."""
    limits = parse_ratelimit_headers(response.headers)
    if limits is not None and limits.remaining == 0:
        return float(limits.reset_in_seconds)
    after = response.headers.get("Retry-After", "").strip()
    return float(after) if after.isdigit() else None


@contextmanager
def retrying_client(stopped: threading.Event, notice: Notice = lambda _: None) -> Iterator[None]:
    """While entered, all requests of huggingface_hub obey the limits; `notice` receives retries.

    Once `stopped` is set, no further request is sent and waits end. A rate limit that exceeds the
    limits sets it.
    """
    set_client_factory(lambda: _RetryingClient(stopped, notice))
    try:
        yield
    finally:
        set_client_factory(default_client_factory)


MAIN_FILES = (
    *("config.json", "model_index.json", "modules.json"),
    *("open_clip_config.json", "adapter_config.json", "params.json"),
)
"""The first of these that a repository has is the `config` of the pulled list."""

CONFIG_FILES = (
    *MAIN_FILES,
    *("config_sentence_transformers.json", "quantize_config.json", "sentence_bert_config.json"),
)
"""The only names of files that are ever downloaded from a repository."""

MAX_FILES = 24
MAX_FILE_BYTES = 2 * 2**20
"""The largest published configurations, with the names of 20,000 labels, have about 1 MB."""

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def fetch_configurations(
    files: Iterable[str] | None, fetch: Callable[[str], str], folder: Path
) -> str | None:
    """Fetch the configuration files of a repository into `folder`; return the name of the main one.

    `files` are the names of the repository's files; without a list only `config.json` is tried.
    `fetch` returns the text of one. A repository may have none, for which None is returned. Raises
    ConfigError for a malformed one, and what `fetch` raises.
    """
    names = set(files) if files is not None else {"config.json"}
    texts = {name: fetch(name) for name in CONFIG_FILES if name in names}
    main = next((name for name in MAIN_FILES if name in texts), None)
    if main is None:
        return None
    # The components or modules that the main files name.
    index = json_object(texts.get("model_index.json", "{}"), "model_index.json")
    folders = [name for name, value in index.items() if isinstance(value, list)]
    folders += [
        module.path for module in repositories.read_modules(texts.get("modules.json", "[]"))
    ]
    nested = [
        file
        for path in folders
        if all(_PART.fullmatch(part) for part in path.split("/"))
        for name in ("config.json", "sentence_bert_config.json")
        if (file := f"{path}/{name}") in names
    ]
    texts |= {name: fetch(name) for name in nested[: MAX_FILES - len(texts)]}
    values = {n: json_object(text, n) for n, text in texts.items() if n != "modules.json"}
    # Files in the form of a model's own code, as a configuration of Transformers.
    original = None
    if "config.json" in values:
        original = repositories.converted_mamba(values["config.json"])
    elif "params.json" in values:
        original = repositories.converted(values["params.json"])
    if original is not None:
        texts[repositories.ORIGINAL_CONFIG] = json.dumps(original, indent=1)
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return main


def base_pipeline(library: str | None, tags: Iterable[str]) -> str | None:
    """Return the repository that an adapter of diffusers is for, as its tags say.

    The Hub makes such a tag from `base_model` in the description, and a second one that says how
    the repository is related to it, such as `base_model:adapter:org/name`.
    """
    if library != "diffusers":
        return None
    bases = [tag.split(":")[1:] for tag in tags if tag.startswith("base_model:")]
    related = [base[1] for base in bases if len(base) == 2 and base[0] == "adapter"]
    plain = [base[0] for base in bases if len(base) == 1]
    return next(iter([*related, *plain]), None)


NO_CONFIGURATION = "no configuration file: the sweep says what the repository is"
"""How a report counts repositories that say what they are by the names of their files alone."""

_UNREACHABLE = (HubUnavailableError, httpx2.TransportError, errors.OfflineModeIsEnabled)
"""Errors that say nothing about a model: the Hub or the network failed."""

_REFUSED = (
    *(ConfigError, errors.HfHubHTTPError),
    *(errors.HFValidationError, errors.LocalEntryNotFoundError),
)
"""Errors about one model: the Hub answers, but has no configuration that can be used."""

_GIVE_UP_AFTER = 3
"""After this many consecutive models that failed, the Hub is considered unavailable."""

_EXPAND = ["sha", "downloads", "likes", "gated", "private", "disabled", "pipeline_tag"]
_EXPAND += ["library_name", "tags", "config", "siblings"]


def pull(
    query: lists.PulledQuery,
    path: Path,
    *,
    endpoint: str | None = None,
    token: str | None = None,
    cache: Path | None = None,
    workers: int = 8,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    notice: Notice = lambda _: None,
) -> lists.PullReport:
    """Write the list of the models of a query to `path`, with their configurations next to it.

    `HF_ENDPOINT` and `HF_TOKEN` are used if `endpoint` and `token` are None. If the Hub fails for
    longer than it may, or on Ctrl-C, the list is written with the models so far and those of the
    earlier list, and the report is `partial`. Raises SourceError if nothing was pulled at all (the
    earlier list stays as it is), and UsageError for an invalid endpoint.
    """
    earlier = {m.repository: m for m in lists.read_pulled(path).model} if path.exists() else {}
    disable_progress_bars()
    logging.set_verbosity_error()
    api = HfApi(endpoint=endpoint, token=token)
    try:
        parts = urlsplit(api.endpoint)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # the port is not a number
        usable = False
    if not usable:
        raise UsageError(
            f"HF_ENDPOINT {api.endpoint!r} is not an address: write https://host[:port]"
        )
    puller = _Puller(api, query, path, cache, earlier)
    with retrying_client(threading.Event(), notice):
        puller.list_models()
    stopped = threading.Event()
    with retrying_client(stopped, notice):
        puller.fetch(workers, stopped, progress)
    return puller.write()


class _Puller:
    """One pull: the listed models, the results so far, and why it was interrupted.

    `earlier` are the models of the list that it replaces, by name.
    """

    def __init__(
        self,
        api: HfApi,
        query: lists.PulledQuery,
        path: Path,
        cache: Path | None,
        earlier: dict[str, lists.PulledModel],
    ) -> None:
        self.api, self.query, self.path = api, query, path
        self.cache, self.earlier = cache, earlier
        self.listed: list[ModelInfo] = []
        self.done: dict[str, lists.PulledModel] = {}
        self.message: str | None = None

    def list_models(self) -> None:
        """Fill `listed`, up to the first page that fails. Raises SourceError if none succeeds."""
        query = self.query
        try:
            for info in self.api.list_models(
                filter=[tag for tag in (query.family, query.library) if tag] or None,
                pipeline_tag=query.task,
                sort=lists.SORTS[query.sort],
                limit=query.top,
                expand=_EXPAND,
            ):
                self.listed.append(info)
        except _UNREACHABLE as exc:
            self.message = one_line(exc)
        except errors.HfHubHTTPError as exc:
            raise SourceError(f"{self.api.endpoint} rejects the listing: {one_line(exc)}") from exc
        except (ValueError, TypeError, KeyError) as exc:
            raise SourceError(f"{self.api.endpoint} is not a Hub: {one_line(exc)}") from exc
        if not self.listed:
            raise SourceError(self.message or f"{self.api.endpoint}: lists no such model")

    def fetch(
        self, workers: int, stopped: threading.Event, progress: Callable[[int, int], None]
    ) -> None:
        """Fill `done`; sets `message` if the pull is interrupted."""
        failed_in_a_row = 0
        futures: list[Future[lists.PulledModel]] = []
        with ThreadPoolExecutor(workers) as pool:
            try:
                futures += [pool.submit(self._fetch_one, info) for info in self.listed]
                for count, future in enumerate(as_completed(futures), 1):
                    failed_in_a_row = failed_in_a_row + 1 if future.exception() else 0
                    progress(count, len(futures))
                    if failed_in_a_row >= _GIVE_UP_AFTER or stopped.is_set():
                        break
            except KeyboardInterrupt:
                self.message = "interrupted"
            finally:
                # as_completed would wait for ever for futures that are cancelled while it iterates.
                stopped.set()
                pool.shutdown(cancel_futures=True)
        for future in futures:
            if not future.cancelled():
                try:
                    model = future.result()
                except _UNREACHABLE as failure:
                    self.message = self.message or one_line(failure)
                else:
                    self.done[model.repository] = model

    def _fetch_one(self, info: ModelInfo) -> lists.PulledModel:
        """Pin one model and download its configuration. Raises the errors in `_UNREACHABLE`."""
        config, tags, files = info.config or {}, info.tags or [], info.siblings
        model_type = config.get("model_type")
        licenses = (tag.removeprefix("license:") for tag in tags if tag.startswith("license:"))
        listed = lists.PulledModel(
            repository=info.id,
            model_type=model_type if isinstance(model_type, str) else None,
            downloads=info.downloads,
            likes=info.likes,
            task=info.pipeline_tag,
            library=info.library_name,
            license=next(licenses, None),
            gated=bool(info.gated),
            tags=kept_tags(tags),
            files=kept_files(s.rfilename for s in files) if files is not None else None,
        )
        try:
            revision = info.sha or self.api.model_info(info.id, expand=["sha"]).sha
            if revision is None:
                return msgspec.structs.replace(listed, problem="the Hub reports no commit")
            listed = msgspec.structs.replace(listed, revision=revision)
            return self._configured(listed, info, revision)
        except errors.RemoteEntryNotFoundError:
            return listed
        except _REFUSED as exc:
            return msgspec.structs.replace(listed, problem=problem_of(exc))

    def _configured(
        self, listed: lists.PulledModel, info: ModelInfo, revision: str
    ) -> lists.PulledModel:
        """Fetch the configuration files of a repository, and those of an adapter's base."""
        where = Path("configs") / info.id.replace("/", "--") / revision[:12]
        folder = self.path.parent / where
        main = self._fetch_into(folder, info, revision)
        pipeline = base_pipeline(info.library_name, info.tags or ()) if main is None else None
        try:
            if pipeline is not None:
                base = f"adapter of diffusers: its base pipeline {pipeline}"
                of_base = self.api.model_info(pipeline, expand=["sha", "siblings"])
                main = self._fetch_into(folder / repositories.BASE, of_base, of_base.sha or "main")
                where /= repositories.BASE
            elif main is not None and not (folder / "config.json").is_file():
                file = folder / "adapter_config.json"
                adapter = read_json_object(file) if file.is_file() else {}
                name = adapter.get("base_model_name_or_path")
                if isinstance(name, str) and name:
                    base = f"PEFT adapter: its base model {name}"
                    commit = self.api.model_info(name, expand=["sha"]).sha
                    text = self._download(name, commit or "main", "config.json")
                    json_object(text, "config.json")
                    write_atomically(folder / repositories.BASE_CONFIG, text.encode())
        except _REFUSED as exc:
            return msgspec.structs.replace(listed, problem=f"{base}: {problem_of(exc)}")
        if main is None:
            return listed
        model_type = None
        if (folder / "config.json").is_file():
            model_type = read_json_object(folder / "config.json").get("model_type")
        return msgspec.structs.replace(
            listed,
            config=(where / main).as_posix(),
            model_type=model_type if isinstance(model_type, str) else listed.model_type,
            weights=info.id in self.earlier and self.earlier[info.id].weights,
        )

    def _fetch_into(self, folder: Path, info: ModelInfo, revision: str) -> str | None:
        names = [sibling.rfilename for sibling in info.siblings] if info.siblings else None
        return fetch_configurations(
            names, lambda name: self._download(info.id, revision, name), folder
        )

    def _download(self, repository: str, revision: str, filename: str) -> str:
        """Return the text of one of `CONFIG_FILES`, through the user's cache of the Hub.

        Raises ConfigError for a file of more than `MAX_FILE_BYTES`, or that is no text.
        """
        path = try_to_load_from_cache(repository, filename, self.cache, revision)
        if not isinstance(path, str):
            url = hf_hub_url(repository, filename, revision=revision, endpoint=self.api.endpoint)
            size = get_hf_file_metadata(url, token=self.api.token, endpoint=self.api.endpoint).size
            if size is not None and size > MAX_FILE_BYTES:
                raise ConfigError(f"{filename}: {size:,} bytes are too many for a configuration")
            path = hf_hub_download(
                repository,
                filename,
                revision=revision,
                endpoint=self.api.endpoint,
                token=self.api.token,
                cache_dir=self.cache,
            )
        try:
            return Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError as exc:
            raise ConfigError(f"{filename}: not UTF-8 text: {exc.reason}") from exc

    def write(self) -> lists.PullReport:
        """Write the list; an interrupted pull keeps the other models of the earlier one."""
        endpoint = self.api.endpoint
        models = [self.done[info.id] for info in self.listed if info.id in self.done]
        if not models:
            raise SourceError(self.message or f"{endpoint}: no model could be fetched")
        partial, message, kept = self.message is not None, None, []
        if partial:
            kept = [model for name, model in self.earlier.items() if name not in self.done]
            message = f"{len(models)} of {self.query.top} models pulled, then: {self.message}"
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        pulled = lists.PulledList(
            endpoint=endpoint,
            pulled_at=now,
            query=self.query,
            partial=partial,
            message=message,
            model=[*models, *kept],
        )
        lists.write_pulled(self.path, pulled)
        problems = Counter(m.problem or NO_CONFIGURATION for m in models if not m.config)
        return lists.PullReport(
            path=str(self.path),
            models=len(models),
            configs=sum(m.config is not None for m in models),
            problems=dict(problems.most_common()),
            partial=partial,
            message=message,
            kept=len(kept),
        )
