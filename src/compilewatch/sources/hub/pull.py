"""Pull the Hub's most-used models: pinned commits and configuration files, never weights."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import msgspec
from huggingface_hub import (
    HfApi,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
)
from huggingface_hub.hf_api import ModelInfo
from huggingface_hub.utils import disable_progress_bars, logging

from compilewatch.errors import ConfigError, SourceError, UsageError
from compilewatch.files import write_atomically
from compilewatch.sources.configs import parse_config
from compilewatch.sources.hub.configurations import (
    CONFIG_FILES,
    MAX_FILE_BYTES,
    base_model,
    base_pipeline,
    fetch_configurations,
)
from compilewatch.sources.hub.formats import kept_files, kept_tags
from compilewatch.sources.hub.problems import one_line, problem_of
from compilewatch.sources.hub.pulled import (
    SORTS,
    PulledList,
    PulledModel,
    PulledQuery,
    PullReport,
    pulled_path,
    read_pulled,
    write_pulled,
)
from compilewatch.sources.hub.repositories import BASE, BASE_CONFIG
from compilewatch.sources.hub.retry import HubUnavailableError, Notice, RetryLimits, retrying_client
from compilewatch.sources.popularity import figures_of, popularity_csv

NO_CONFIGURATION = "no configuration file: the sweep says what the repository is"
"""How a report counts repositories that say what they are by the names of their files alone."""

_UNREACHABLE = (HubUnavailableError, httpx2.TransportError, OfflineModeIsEnabled)
"""Errors that say nothing about a model: the Hub or the network failed."""

_GIVE_UP_AFTER = 3
"""After this many consecutive models that failed, the Hub is considered unavailable."""

_EXPAND = ["sha", "downloads", "likes", "gated", "private", "disabled", "pipeline_tag"]
_EXPAND += ["library_name", "tags", "config", "siblings"]


def pull(
    *,
    top: int = 50,
    sort: str = "downloads",
    task: str | None = None,
    family: str | None = None,
    library: str | None = None,
    output: Path | None = None,
    endpoint: str | None = None,
    token: str | None = None,
    cache: Path | None = None,
    limits: RetryLimits | None = None,
    workers: int = 8,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    notice: Notice = lambda _: None,
) -> PullReport:
    """Write the list of the `top` models, with their configurations next to it.

    `HF_ENDPOINT` and `HF_TOKEN` are used if `endpoint` and `token` are None. If the Hub fails for
    longer than `limits`, or on Ctrl-C, the list is written with the models so far and those of the
    earlier list, and the report is `partial`. Raises SourceError if nothing was pulled at all (the
    earlier list stays as it is), and UsageError for an invalid argument.
    """
    if sort not in SORTS:
        raise UsageError(f"unknown sort {sort!r}: use {', '.join(SORTS)}")
    if top < 1:
        raise UsageError(f"top must be 1 or more, not {top}")
    path = output or pulled_path()
    query = PulledQuery(top=top, sort=sort, task=task, family=family, library=library)
    earlier = read_pulled(path) if path.exists() else None
    disable_progress_bars()
    logging.set_verbosity_error()
    api = HfApi(endpoint=endpoint, token=token)
    _check_address(api.endpoint)
    puller = _Puller(api, path.parent, cache, earlier, limits or RetryLimits(), notice)
    puller.list_models(query)
    puller.fetch(workers, progress)
    return _write(path, query, api, puller)


def _check_address(endpoint: str) -> None:
    """Raise UsageError for an address that is not valid for a server."""
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # the port is not a number
        usable = False
    if not usable:
        raise UsageError(f"HF_ENDPOINT {endpoint!r} is not an address: write https://host[:port]")


class _Puller:
    """One pull: the listed models, the results so far, and why it was interrupted."""

    def __init__(
        self,
        api: HfApi,
        folder: Path,
        cache: Path | None,
        earlier: PulledList | None,
        limits: RetryLimits,
        notice: Notice,
    ) -> None:
        self.api = api
        self.folder = folder
        self.cache = cache
        self.earlier = {m.repository: m for m in earlier.model} if earlier else {}
        self.limits = limits
        self.notice = notice
        self.listed: list[ModelInfo] = []
        self.done: dict[str, PulledModel] = {}
        self.message: str | None = None

    def list_models(self, query: PulledQuery) -> None:
        """Fill `listed`, up to the first page that fails. Raises SourceError if none succeeds."""
        tags = [tag for tag in (query.family, query.library) if tag]
        try:
            with retrying_client(self.limits, threading.Event(), self.notice):
                for info in self.api.list_models(
                    filter=tags or None,
                    pipeline_tag=query.task,
                    sort=SORTS[query.sort],
                    limit=query.top,
                    expand=_EXPAND,
                ):
                    self.listed.append(info)
        except _UNREACHABLE as exc:
            self.message = one_line(exc)
        except HfHubHTTPError as exc:
            raise SourceError(f"{self.api.endpoint} rejects the listing: {one_line(exc)}") from exc
        except (ValueError, TypeError, KeyError) as exc:
            raise SourceError(f"{self.api.endpoint} is not a Hub: {one_line(exc)}") from exc
        if not self.listed:
            raise SourceError(self.message or f"{self.api.endpoint}: lists no such model")

    def fetch(self, workers: int, progress: Callable[[int, int], None]) -> None:
        """Fill `done`; sets `message` if the pull is interrupted."""
        stopped = threading.Event()
        failed_in_a_row = 0
        futures: list[Future[PulledModel]] = []
        client = retrying_client(self.limits, stopped, self.notice)
        with client, ThreadPoolExecutor(workers) as pool:
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
                self._collect(future)

    def _collect(self, future: Future[PulledModel]) -> None:
        failure = future.exception()
        if isinstance(failure, _UNREACHABLE):
            self.message = self.message or one_line(failure)
        elif failure is not None:
            raise failure
        else:
            model = future.result()
            self.done[model.repository] = model

    def _fetch_one(self, info: ModelInfo) -> PulledModel:
        """Pin one model and download its configuration. Raises the errors in `_UNREACHABLE`."""
        listed = _listed(info)
        try:
            revision = info.sha or self.api.model_info(info.id, expand=["sha"]).sha
            if revision is None:
                return msgspec.structs.replace(listed, problem="the Hub reports no commit")
            listed = msgspec.structs.replace(listed, revision=revision)
            return self._configured(listed, info, revision)
        except HubUnavailableError:
            raise
        except ConfigError as exc:
            return msgspec.structs.replace(listed, problem=f"malformed configuration: {exc}")
        except RemoteEntryNotFoundError:
            return listed
        except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as exc:
            return msgspec.structs.replace(listed, problem=problem_of(exc))

    def _configured(self, listed: PulledModel, info: ModelInfo, revision: str) -> PulledModel:
        """Fetch the configuration files of a repository, and that of an adapter's base model."""
        where = Path("configs") / info.id.replace("/", "--") / revision[:12]
        folder = self.folder / where
        names = [sibling.rfilename for sibling in info.siblings] if info.siblings else None
        main = fetch_configurations(
            names, lambda name: self._config_text(info.id, revision, name), folder
        )
        if main is None:
            pipeline = base_pipeline(info.library_name, info.tags or ())
            return self._of_base_pipeline(listed, pipeline, where) if pipeline else listed
        base = base_model(folder)
        if base is not None and not (folder / "config.json").exists():
            problem = self._fetch_base(base, folder)
            if problem is not None:
                problem = f"PEFT adapter: its base model {base}: {problem}"
                return msgspec.structs.replace(listed, problem=problem)
        model_type = None
        if (folder / "config.json").is_file():
            config = parse_config((folder / "config.json").read_text("utf-8"), "config.json")
            model_type = config.get("model_type")
        return msgspec.structs.replace(
            listed,
            config=(where / main).as_posix(),
            model_type=model_type if isinstance(model_type, str) else listed.model_type,
            weights=info.id in self.earlier and self.earlier[info.id].weights,
        )

    def _fetch_base(self, base: str, folder: Path) -> str | None:
        """Fetch the configuration of an adapter's base model, as it is now, or say why not."""
        try:
            revision = self.api.model_info(base, expand=["sha"]).sha
            text = self._config_text(base, revision or "main", "config.json")
            parse_config(text, "config.json")
        except HubUnavailableError:
            raise
        except ConfigError as exc:
            return f"malformed configuration: {exc}"
        except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as exc:
            return problem_of(exc)
        write_atomically(folder / BASE_CONFIG, text.encode())
        return None

    def _of_base_pipeline(self, listed: PulledModel, base: str, where: Path) -> PulledModel:
        """Fetch the configurations of the pipeline that an adapter of diffusers is for."""
        try:
            info = self.api.model_info(base, expand=["sha", "siblings"])
            names = [sibling.rfilename for sibling in info.siblings or ()]
            main = fetch_configurations(
                names,
                lambda name: self._config_text(base, info.sha or "main", name),
                self.folder / where / BASE,
            )
        except HubUnavailableError:
            raise
        except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as exc:
            problem = f"adapter of diffusers: its base pipeline {base}: {problem_of(exc)}"
            return msgspec.structs.replace(listed, problem=problem)
        if main is None:
            return listed
        return msgspec.structs.replace(listed, config=(where / BASE / main).as_posix())

    def _config_text(self, repository: str, revision: str, name: str) -> str:
        fetched = self.download(repository, revision, name)
        try:
            return fetched.read_text(encoding="utf-8")
        except UnicodeDecodeError as exc:
            raise ConfigError(f"{name}: not UTF-8 text: {exc.reason}") from exc

    def download(self, repository: str, revision: str, filename: str) -> Path:
        """Download one of `CONFIG_FILES`, through the user's cache of the Hub.

        Raises ConfigError for a file of more than `MAX_FILE_BYTES`.
        """
        if filename.rpartition("/")[2] not in CONFIG_FILES:
            raise UsageError(f"a pull downloads configuration files, never {filename}")
        cached = try_to_load_from_cache(repository, filename, self.cache, revision)
        if isinstance(cached, str):
            return Path(cached)
        url = hf_hub_url(repository, filename, revision=revision, endpoint=self.api.endpoint)
        size = get_hf_file_metadata(url, token=self.api.token, endpoint=self.api.endpoint).size
        if size is not None and size > MAX_FILE_BYTES:
            raise ConfigError(f"{filename}: {size:,} bytes are too many for a configuration")
        return Path(
            hf_hub_download(
                repository,
                filename,
                revision=revision,
                endpoint=self.api.endpoint,
                token=self.api.token,
                cache_dir=self.cache,
            )
        )


def _listed(info: ModelInfo) -> PulledModel:
    """Return what the listing itself contains about a model."""
    config = info.config if isinstance(info.config, dict) else {}
    tags = info.tags or []
    model_type = config.get("model_type")
    return PulledModel(
        repository=info.id,
        model_type=model_type if isinstance(model_type, str) else None,
        downloads=info.downloads,
        likes=info.likes,
        task=info.pipeline_tag,
        library=info.library_name,
        license=next((t.removeprefix("license:") for t in tags if t.startswith("license:")), None),
        gated=bool(info.gated),
        tags=kept_tags(tags),
        files=kept_files(s.rfilename for s in info.siblings) if info.siblings is not None else None,
    )


def _write(path: Path, query: PulledQuery, api: HfApi, puller: _Puller) -> PullReport:
    """Write list and figures; an interrupted pull keeps the other models of the earlier list."""
    models = [puller.done[i.id] for i in puller.listed if i.id in puller.done]
    if not models:
        raise SourceError(puller.message or f"{api.endpoint}: no model could be fetched")
    partial = puller.message is not None
    kept = [m for name, m in puller.earlier.items() if name not in puller.done] if partial else []
    message = None
    if partial:
        message = f"{len(models)} of {query.top} models pulled, then: {puller.message}"
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    pulled = PulledList(
        endpoint=api.endpoint,
        pulled_at=now,
        query=query,
        partial=partial,
        message=message,
        model=[*models, *kept],
    )
    write_pulled(path, pulled)
    figures = None
    if query.sort == "downloads" and not query.is_filtered and not partial:
        figures = path.with_name("popularity.csv")
        write_atomically(figures, _figures(models, api.endpoint, now).encode())
    return PullReport(
        path=str(path),
        models=len(models),
        configs=sum(m.config is not None for m in models),
        problems=dict(
            Counter(m.problem or NO_CONFIGURATION for m in models if not m.config).most_common()
        ),
        partial=partial,
        message=message,
        kept=len(kept),
        figures=str(figures) if figures else None,
    )


def _figures(models: Iterable[PulledModel], endpoint: str, now: str) -> str:
    counted = [(m.model_type, m.repository, m.downloads or 0) for m in models if m.model_type]
    return popularity_csv(
        figures_of(counted),
        {
            "source": f"{endpoint}, {len(counted)} most-downloaded models with a model type",
            "date": now[:10],
            "use": "compare with inputs/popularity.csv, then copy it there",
        },
    )
