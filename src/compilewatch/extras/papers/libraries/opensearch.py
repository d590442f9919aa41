"""The library `opensearch`: an index of papers on Amazon OpenSearch, with the files on S3.

Field names are those of the index `research-papers-v2`: title, abstract, authors, date, s3_bucket,
s3_key, ingested_at, executed_on_trn.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from compilewatch.errors import SourceError, UsageError
from compilewatch.extras.papers import PaperQuery
from compilewatch.extras.papers.records import Paper
from compilewatch.extras.papers.settings import PapersSettings

TIMEOUT_SECONDS = 60.0
FIELDS = ("title", "abstract", "authors", "date", "ingested_at", "s3_bucket", "s3_key")
MAX_FILE_BYTES = 64 * 2**20


class OpenSearchLibrary:
    """Searches by id, by time of ingestion, by words or by a query in OpenSearch's language."""

    name = "opensearch"

    def __init__(self, settings: PapersSettings, *, cache: Path) -> None:
        del cache
        self._settings = settings
        parts = urlsplit(settings.opensearch_endpoint)
        if not settings.opensearch_endpoint:
            raise UsageError("no OpenSearch endpoint is set: set OPENSEARCH_ENDPOINT")
        if parts.scheme not in ("", "http", "https"):
            raise UsageError(f"OPENSEARCH_ENDPOINT {parts.scheme}://… is not an https:// address")
        if not parts.scheme:  # the founding system's form: only the host
            parts = urlsplit(f"https://{settings.opensearch_endpoint}")
        self._secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._secure else 80)

    def find(self, query: PaperQuery) -> tuple[Paper, ...]:
        body: dict[str, Any] = {"query": _query(query), "size": query.max_papers}
        if query.recent_days is not None and not query.random:
            body["sort"] = [{"ingested_at": {"order": "desc"}}]
        body["_source"] = list(FIELDS)
        hits = self._search(body)
        return tuple(self._paper(hit) for hit in hits)

    def fetch(self, paper: Paper) -> bytes:
        from botocore import exceptions

        from compilewatch import aws

        bucket, _, key = paper.location.removeprefix("s3://").partition("/")
        if not paper.location.startswith("s3://") or not key:
            raise SourceError(f"paper {paper.id} has no file: its s3_bucket or s3_key is empty")
        settings = self._settings
        try:
            client = aws.client(
                "s3",
                region=settings.region,
                profile=settings.profile,
                endpoint_url=settings.s3_endpoint_url,
                attempts=3,
            )
            response = client.get_object(Bucket=bucket, Key=key)
            data: bytes = response["Body"].read(MAX_FILE_BYTES + 1)
        except (exceptions.BotoCoreError, exceptions.ClientError) as error:
            reason = aws.explain(error, settings.region)
            raise SourceError(f"{paper.location} cannot be read: {reason}") from None
        if len(data) > MAX_FILE_BYTES:
            raise SourceError(f"{paper.location} has more than {MAX_FILE_BYTES:,} bytes")
        return data

    def _search(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        from opensearchpy import exceptions

        index = self._settings.opensearch_index
        where = f"OpenSearch at {self._host}:{self._port}"
        client = self._client()
        try:
            response = client.search(body=body, index=index)
        except exceptions.NotFoundError:
            raise UsageError(f"{where} has no index {index}: set OPENSEARCH_INDEX") from None
        except exceptions.RequestError as error:
            raise UsageError(f"{where} rejects the query: {_reason(error)}") from None
        except (exceptions.AuthenticationException, exceptions.AuthorizationException) as error:
            raise SourceError(
                f"{where} rejects these credentials ({error.status_code}): check AWS_PROFILE and "
                "the access policy of the domain"
            ) from None
        except exceptions.ConnectionError as error:
            raise SourceError(f"{where} does not respond ({_reason(error)})") from None
        except (exceptions.OpenSearchException, ValueError) as error:
            reason = _reason(error)
            if "<html" in reason.lower() or "<!doctype" in reason.lower():
                reason = "it responds with a web page: correct OPENSEARCH_ENDPOINT"
            raise SourceError(f"{where} is not usable: {reason}") from None
        finally:
            client.close()
        hits = response.get("hits", {}).get("hits") if isinstance(response, dict) else None
        if not isinstance(hits, list):
            raise SourceError(f"{where} responds without hits: is it another service?")
        return hits

    def _client(self) -> Any:
        import boto3
        from opensearchpy import OpenSearch, Urllib3AWSV4SignerAuth, Urllib3HttpConnection

        settings = self._settings
        session = boto3.Session(
            profile_name=settings.profile or None, region_name=settings.region or None
        )
        credentials = session.get_credentials()
        if credentials is None:
            raise UsageError(
                "no AWS credentials found for OpenSearch: set AWS_PROFILE, or AWS_ACCESS_KEY_ID "
                "and AWS_SECRET_ACCESS_KEY"
            )
        region = settings.region or session.region_name
        if not region:
            raise UsageError("OpenSearch needs a region: set AWS_REGION")
        return OpenSearch(
            hosts=[{"host": self._host, "port": self._port}],
            http_auth=Urllib3AWSV4SignerAuth(credentials, region, "es"),
            use_ssl=self._secure,
            verify_certs=self._secure,
            connection_class=Urllib3HttpConnection,
            timeout=TIMEOUT_SECONDS,
            max_retries=2,
            retry_on_timeout=True,
        )

    def _paper(self, hit: Mapping[str, Any]) -> Paper:
        source = hit.get("_source") or {}
        title = source.get("title")
        if not isinstance(title, str) or not title:
            raise UsageError(
                f"the index {self._settings.opensearch_index} has documents without the field "
                f"`title` (such as {hit.get('_id')}): its fields must be {', '.join(FIELDS)}"
            )
        bucket, key = source.get("s3_bucket") or "", source.get("s3_key") or ""
        authors = source.get("authors") or ()
        return Paper(
            id=str(hit.get("_id", "")),
            title=title,
            library=self.name,
            location=f"s3://{bucket}/{key}" if bucket and key else "",
            abstract=str(source.get("abstract") or ""),
            authors=(authors,) if isinstance(authors, str) else tuple(map(str, authors)),
            date=str(source.get("date") or ""),
            ingested_at=str(source.get("ingested_at") or ""),
        )


def _query(query: PaperQuery) -> dict[str, Any]:
    if query.paper_id:
        clause: dict[str, Any] = {"ids": {"values": [query.paper_id]}}
    elif query.recent_days is not None:
        minutes = round(query.recent_days * 1440)
        clause = {"range": {"ingested_at": {"gte": f"now-{minutes}m"}}}
    elif query.dsl is not None:
        clause = query.dsl
    elif query.text:
        clause = {"multi_match": {"query": query.text, "fields": ["title", "abstract", "authors"]}}
    else:
        clause = {"match_all": {}}
    if query.random:
        return {"function_score": {"query": clause, "random_score": {}}}
    return clause


def _reason(error: Exception) -> str:
    """The reason in one line, without a response's complete text."""
    info = getattr(error, "info", None)
    if isinstance(info, dict):
        details = info.get("error")
        if isinstance(details, dict):
            causes = details.get("root_cause") or [details]
            return " ".join(str(causes[0].get("reason", details.get("type", ""))).split())[:200]
    return " ".join(str(error).split())[:200]
