"""The executor's HTTP service: a Starlette application over the store and the runner."""

import asyncio
import contextlib
import ctypes
import hmac
import ipaddress
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from compilewatch import __version__
from compilewatch.errors import ExecutorError
from compilewatch.extras.executor import jobs, protocol, sandbox
from compilewatch.extras.executor.jobs import PROFILE
from compilewatch.extras.executor.protocol import JobRequest, JobState
from compilewatch.extras.executor.sandbox import init, policy
from compilewatch.records import Record, digest, now

T = TypeVar("T")

LOG_BYTES = 2**20
MOST_LISTED = 1000
POLL_SECONDS = 0.1


class Execute(Record, frozen=True, kw_only=True):
    """The body of `POST /execute`."""

    paper_id: Annotated[str, Meta(min_length=1, max_length=200)]
    code: Annotated[str, Meta(min_length=1)]
    timeout: Annotated[float, Meta(gt=0)] | None = None


class ExecuteBatch(Record, frozen=True, kw_only=True):
    """The body of `POST /execute_batch`."""

    batch: Annotated[list[Execute], Meta(min_length=1, max_length=100)]
    timeout: Annotated[float, Meta(gt=0)] | None = None


class Service:
    """The responses to all calls. One service owns one store and one runner."""

    def __init__(self, store: jobs.JobStore, setup: jobs.Setup) -> None:
        self.store, self.setup = store, setup
        self.runner = jobs.JobRunner(store, setup)
        self.draining = False
        self._accepting = threading.Lock()

    def health(self, _: Request) -> Response:
        """`GET /health`: the state of the service, without a token."""
        running, queued = self.store.counts()
        setup = self.setup
        return _json(
            {
                "service": protocol.SERVICE,
                "protocol": protocol.PROTOCOL_VERSION,
                "version": __version__,
                "status": "draining" if self.draining else "ok",
                "timestamp": now(),
                # Of all clients: the instance must not be stopped before both are 0.
                "running": running,
                "queued": queued,
                "draining": self.draining,
                "concurrency": setup.own.concurrency,
                "neuron_available": bool(setup.sandbox.devices),
                "profiler_enabled": setup.profiles is not None,
                "working_dir": policy.JOB_FOLDER,
                "max_execution_time": setup.sandbox.limits.deadline_seconds,
            }
        )

    async def submit(self, request: Request) -> Response:
        """`PUT /jobs/{key}`: 201 for a new job, 200 for one that is stored already."""
        key = _key(request)
        job = await _body(request, JobRequest)
        state, new = await run_in_threadpool(self.accept, key, job)
        return _json(state, 201 if new else 200)

    def accept(self, key: str, job: JobRequest) -> tuple[JobState, bool]:
        """Store a job if the service takes it. Raises HTTPException."""
        _verify(job, self.setup.sandbox.limits)
        with self._accepting:
            if self.draining:
                raise HTTPException(503, "the service takes no more jobs: it is to stop")
            state, new = self.store.submit(key, job)
        if new:
            self.runner.wake()
        return state, new

    def listed(self, _: Request) -> Response:
        """`GET /jobs`: the newest jobs."""
        return _json(self.store.newest(MOST_LISTED))

    def status(self, request: Request) -> Response:
        """`GET /jobs/{key}`."""
        return _json(self.store.get(_key(request)))

    def cancel(self, request: Request) -> Response:
        """`DELETE /jobs/{key}`: 202 while the job still runs, 200 once it has ended."""
        state = self.store.cancel(_key(request))
        self.runner.cancel(state.key)
        return _json(state, 200 if state.ended else 202)

    def log(self, request: Request) -> Response:
        """`GET /jobs/{key}/log?stream=stdout&offset=0`: bytes; the headers say how to go on."""
        key = _key(request)
        stream = request.query_params.get("stream", "stdout")
        offset = request.query_params.get("offset", "0")
        if stream not in ("stdout", "stderr") or not offset.isascii() or not offset.isdecimal():
            raise _invalid("stream must be stdout or stderr, and offset a number of bytes")
        # The state first: what is written after it is read next time.
        state = self.store.get(key)
        data = self._logged(
            state, policy.STDOUT if stream == "stdout" else policy.STDERR, int(offset), LOG_BYTES
        )
        ended = state.ended and len(data) < LOG_BYTES
        headers = {"X-Next-Offset": str(int(offset) + len(data)), "X-Ended": str(int(ended))}
        return _bytes(data, headers)

    def _logged(self, state: JobState, name: str, offset: int, most: int) -> bytes:
        file = self.store.attempt_folder(state) / name
        with contextlib.suppress(FileNotFoundError), file.open("rb") as opened:
            opened.seek(min(offset, 2**60))
            return opened.read(most)
        return b""

    def artifact(self, request: Request) -> Response:
        """`GET /jobs/{key}/artifacts/{name}`: the content."""
        state, name = self.store.get(_key(request)), request.path_params["name"]
        if name not in {artifact.name for artifact in state.artifacts}:
            raise HTTPException(404, f"job {state.key} left no file {name[:100]!r}")
        return _bytes((self.store.attempt_folder(state) / jobs.OUTPUT / name).read_bytes(), {})

    def drain(self, request: Request) -> Response:
        """`PUT /drain`: take no more jobs, if none runs or waits. `DELETE /drain`: take them again.

        It lets the instance be stopped without a job being submitted in between.
        """
        with self._accepting:
            running, queued = self.store.counts()
            if request.method == "PUT" and (running or queued):
                raise HTTPException(409, f"{running} jobs run and {queued} wait")
            self.draining = request.method == "PUT"
        return self.health(request)

    async def execute(self, request: Request) -> Response:
        """`POST /execute` of the founding system: one script, with the response at its end."""
        script = await _body(request, Execute)
        return _json(await self._executed(script, script.timeout))

    async def execute_batch(self, request: Request) -> Response:
        """`POST /execute_batch` of the founding system: several scripts.

        Of two with one paper's id, the later one is shown.
        """
        asked = await _body(request, ExecuteBatch)
        runs = [self._executed(script, asked.timeout) for script in asked.batch]
        answers = await asyncio.gather(*runs)
        successful = sum(1 for result in answers if result["success"])
        return _json(
            {
                "success": successful == len(answers),
                "batch_size": len(answers),
                "successful": successful,
                "failed": len(answers) - successful,
                "results": {result["paper_id"]: result for result in answers},
            }
        )

    async def _executed(self, script: Execute, timeout: float | None) -> dict[str, Any]:
        requested = policy.SandboxLimits()
        if timeout is not None:
            requested = policy.SandboxLimits(deadline_seconds=timeout)
        limits = {
            name: min(getattr(requested, name), getattr(self.setup.sandbox.limits, name))
            for name in policy.SandboxLimits.__struct_fields__
        }
        request = JobRequest(
            files={"main.py": script.code},
            limits=policy.SandboxLimits(**limits),
            paper_id=script.paper_id,
            profile=True,
        )
        key = f"execute-{digest(request)[:40]}"
        state, _ = await run_in_threadpool(self.accept, key, request)
        while not state.ended:
            await asyncio.sleep(POLL_SECONDS)
            state = await run_in_threadpool(self.store.get, key)
        return await run_in_threadpool(self._founding_answer, script, state)

    def _founding_answer(self, script: Execute, state: JobState) -> dict[str, Any]:
        """The response for one script that has ended.

        `return_code` is negative for a signal, and -1 where something else ended the script.
        """
        result = state.result or protocol.JobResult(ending=policy.SandboxEnding.NOT_STARTED)
        profiles, peak = self.setup.profiles, result.peak_memory_bytes
        profile = [a.name for a in result.artifacts if a.name.startswith(f"{PROFILE}/")]
        timed_out = result.ending is policy.SandboxEnding.DEADLINE
        exit_code = result.exit_code
        most = self.setup.sandbox.limits.log_bytes
        stdout, stderr = (
            self._logged(state, name, 0, most).decode(errors="replace")
            for name in (policy.STDOUT, policy.STDERR)
        )
        response: dict[str, Any] = {
            "success": state.state is protocol.JobStatus.DONE,
            "paper_id": script.paper_id,
            "job": state.key,
            "execution_time": result.duration_seconds,
            "return_code": -(result.signal or 1) if exit_code is None else exit_code,
            "stdout": stdout,
            "stderr": stderr,
            "timeout": timed_out,
            "peak_memory_mb": peak / 2**20 if peak is not None else None,
            "detailed_metrics": {
                name: value
                for line in result.metrics
                for name, value in line.items()
                if name not in ("step", "epoch")
            },
            "profiler": {
                "profiler_enabled": profiles is not None,
                "profiler_output_dir": str(profiles / state.key) if profiles else None,
                "profiler_files": profile,
                "profiler_subdirs": sorted({name.rpartition("/")[0] for name in profile}),
                "total_files": len(profile),
            },
            "lines_of_code": sum(1 for line in script.code.splitlines() if line.strip()),
            "has_training_loop": ".backward(" in script.code,
            "has_evaluation": ".eval(" in script.code,
            "uses_distributed_training": "torch.distributed" in script.code,
        }
        if not response["success"]:
            response["error_type"] = "timeout" if timed_out else "execution_error"
            response["error_message"] = state.message or f"exit status {exit_code}"
        return response


class Gate:
    """Lets calls through that carry the token, and no body that is too large.

    `/health` needs no token. Without a token (only on the loopback address), a call must name the
    loopback address as its host: a page in a browser cannot make one that does not.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode() if token else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/health":
            problem = self._problem(dict(scope["headers"]))
            if problem is not None:
                await _problem_response(*problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _problem(self, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        authorization = headers.get(b"authorization", b"")
        if self._expected and not hmac.compare_digest(authorization, self._expected):
            return 401, "the bearer token is missing or wrong"
        if not self._expected:
            host = headers.get(b"host", b"").rpartition(b":")[0] or headers.get(b"host", b"")
            if host not in (b"127.0.0.1", b"localhost", b"[::1]"):
                return 401, "without a token, call it as 127.0.0.1 or localhost"
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > protocol.MAX_BODY_BYTES:
            return 413, f"a request may have {protocol.MAX_BODY_BYTES} bytes"
        return None


def application(store: jobs.JobStore, setup: jobs.Setup, token: str) -> Starlette:
    """The ASGI application; jobs run from its start to its end."""
    service = Service(store, setup)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await run_in_threadpool(service.runner.start)
        yield
        await run_in_threadpool(service.runner.stop)

    def rejected(request: Request, error: Any) -> Response:
        message = error.detail
        if message == HTTPStatus(error.status_code).phrase:  # no route has this path and method
            message = f"this executor has no {request.method} {request.url.path}"
        return _problem_response(error.status_code, message)

    app = Starlette(
        routes=[
            Route("/health", service.health),
            Route("/jobs", service.listed),
            Route("/jobs/{key}/log", service.log),
            Route("/jobs/{key}/artifacts/{name:path}", service.artifact),
            Route("/jobs/{key:path}", service.submit, methods=["PUT"]),
            Route("/jobs/{key:path}", service.status, methods=["GET"]),
            Route("/jobs/{key:path}", service.cancel, methods=["DELETE"]),
            Route("/drain", service.drain, methods=["PUT", "DELETE"]),
            Route("/execute", service.execute, methods=["POST"]),
            Route("/execute_batch", service.execute_batch, methods=["POST"]),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: rejected},
    )
    app.add_middleware(Gate, token=token)
    return app


def _invalid(message: str) -> HTTPException:
    return HTTPException(422, message)


def _key(request: Request) -> str:
    try:
        return msgspec.convert(request.path_params["key"], protocol.Key)
    except msgspec.ValidationError:
        raise _invalid(
            "a key has 1 to 128 letters, digits, dots, dashes and underscores, and begins with a "
            "letter or digit"
        ) from None


async def _body(request: Request, kind: type[T]) -> T:
    """The JSON body of a call. Raises HTTPException if it is anything else, or too large."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise HTTPException(415, "the body must be application/json")
    data = bytearray()
    most = protocol.MAX_BODY_BYTES
    try:
        async for part in request.stream():
            data += part
            if len(data) > most:
                raise HTTPException(413, f"a request may have {most} bytes")
        return msgspec.json.decode(data, type=kind)
    except ClientDisconnect:
        raise _invalid("the caller ended") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(f"not a valid request: {error}") from None


def _verify(job: JobRequest, ceiling: policy.SandboxLimits) -> None:
    """Raise HTTPException for a request that contradicts itself or wants too much."""
    if job.entry not in job.files:
        raise _invalid(f"files has no {job.entry!r}, which is the entry")
    for name in job.files:
        for folder in Path(name).parents:
            if str(folder) in job.files:
                raise _invalid(f"{str(folder)!r} is a file and a folder")
    for limit in policy.SandboxLimits.__struct_fields__:
        if getattr(job.limits, limit) > (most := getattr(ceiling, limit)):
            raise _invalid(f"limits.{limit} may be at most {most} here")


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _bytes(data: bytes, headers: dict[str, str]) -> Response:
    """Untrusted content: no browser may take it for a page."""
    safe = {"X-Content-Type-Options": "nosniff", "Content-Disposition": "attachment"}
    return Response(data, headers={**headers, **safe}, media_type="application/octet-stream")


def _problem_response(status: int, message: str) -> Response:
    response = _json(protocol.Problem(message=message), status)
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if status == 413:
        response.headers["Connection"] = "close"
    return response


FEWEST_TOKEN_CHARACTERS = 16


def serve(
    setup: jobs.Setup,
    state: Path,
    *,
    certificate: Path | None,
    key: Path | None,
    say: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises ExecutorError or SandboxError before it listens.

    Args:
        setup: where it listens, its token, and how it runs jobs.
        state: the folder of its jobs.
        certificate: the file of its certificate; None: it speaks HTTP.
        key: the file of the certificate's key.
        say: prints a line once it accepts connections.
    """
    import uvicorn

    own, python = setup.own, setup.sandbox.python
    token = own.secret()
    _verify_token(own.host, token)
    for path in (certificate, key):
        if path is not None and not path.is_file():
            raise ExecutorError(f"{path} does not exist")
    sandbox.check(python, setup.sandbox.visible)
    # Other processes of the same user must not read this one's variables and memory.
    ctypes.CDLL(None).prctl(init.PR_SET_DUMPABLE, 0, 0, 0, 0)
    os.umask(0o077)
    listening = _listen(own.host, own.port)
    store = jobs.JobStore(state)
    say(
        f"The executor listens on {own.host}:{listening.getsockname()[1]} and keeps its jobs in "
        f"{state}. It runs {own.concurrency} at a time with {python}."
    )
    try:
        config = uvicorn.Config(
            application(store, setup, token),
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=10,
            limit_concurrency=256,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn has ended everything in order
            uvicorn.Server(config).run(sockets=[listening])
    finally:
        store.close()
        listening.close()


def _verify_token(host: str, token: str) -> None:
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not token and not is_loopback:
        raise ExecutorError(
            f"{host} is reachable from other machines, and there is no token: write one with "
            "`openssl rand -hex 32 > FILE` and add --token-file FILE, or set "
            "COMPILEWATCH_EXECUTOR_TOKEN"
        )
    if token and (len(token) < FEWEST_TOKEN_CHARACTERS or not token.isascii() or " " in token):
        raise ExecutorError(
            f"the token must have at least {FEWEST_TOKEN_CHARACTERS} ASCII characters and no "
            "space: make one with `openssl rand -hex 32`"
        )


def _listen(host: str, port: int) -> socket.socket:
    """Open the socket first, so that an address in use is our own one-line error."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=256)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ExecutorError(
            f"cannot listen on {host}:{port}: {reason}: choose another --port"
        ) from None
