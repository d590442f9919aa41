"""What Alloy v1.18.1 knows of the components used here: their blocks, attributes and exports.

From its documentation (grafana/alloy, `docs/sources/reference/components` and `reference/stdlib`),
where that was silent or newer than the release from the `alloy:"…"` tags of the Go structs. A
component that is not here is refused: add it, from its page, with the change that uses it.

An attribute is a line: its name, `!` where it must be given, its type. Types are Alloy's own names,
and some that say more of a string or a map: `url`, `regex`, `selector` (of LogQL), `label`,
`labels` (a map by label), `target:x` (a map that must hold x). `a|b` lists the strings allowed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

VERSION = "v1.18.1"


@dataclass(frozen=True, kw_only=True)
class AttributeSpec:
    type: str
    required: bool = False


@dataclass(frozen=True, kw_only=True)
class BlockSpec:
    attributes: dict[str, AttributeSpec] = field(default_factory=dict)
    blocks: dict[str, BlockSpec] = field(default_factory=dict)
    required: bool = False
    many: bool = False
    """May stand more than once in the block that holds it."""


@dataclass(frozen=True, kw_only=True)
class ComponentSpec(BlockSpec):
    labelled: bool = True
    exports: dict[str, str] = field(default_factory=dict)
    """Name of the export to its type."""


def _attributes(table: str) -> dict[str, AttributeSpec]:
    rows = (line.split(maxsplit=1) for line in table.splitlines() if line.strip())
    return {
        name.rstrip("!"): AttributeSpec(type=type.strip(), required=name.endswith("!"))
        for name, type in rows
    }


def _block(
    table: str = "",
    blocks: dict[str, BlockSpec] | None = None,
    *,
    required: bool = False,
    many: bool = False,
) -> BlockSpec:
    return BlockSpec(
        attributes=_attributes(table), blocks=blocks or {}, required=required, many=many
    )


_TLS = _block(
    """
    ca_pem string
    ca_file string
    cert_pem string
    cert_file string
    insecure_skip_verify bool
    key_pem secret
    key_file string
    min_version string
    server_name string
    """
)
_CLIENT = """
    bearer_token_file string
    bearer_token secret
    enable_http2 bool
    follow_redirects bool
    http_headers map(list(secret))
    no_proxy string
    proxy_connect_header map(list(secret))
    proxy_from_environment bool
    proxy_url string
    """
_CLIENT_BLOCKS = {
    "authorization": _block("type string\ncredentials secret\ncredentials_file string"),
    "basic_auth": _block("password_file string\npassword secret\nusername string"),
    "tls_config": _TLS,
}
_RULE = _block(
    """
    action replace|keep|drop|hashmod|labelmap|labeldrop|labelkeep|lowercase|uppercase
    modulus int
    regex regex
    replacement string
    separator string
    source_labels list(label)
    target_label label
    """,
    many=True,
)

_METRIC = """
    name! label
    description string
    source string
    prefix string
    max_idle_duration duration
    value string
    """
_STAGES = {
    "stage.drop": """
        drop_counter_reason string
        expression regex
        longer_than size
        older_than duration
        separator string
        source string
        value string
        """,
    "stage.json": "expressions! labels\nsource string\ndrop_malformed bool",
    "stage.label_drop": "values! list(label)",
    "stage.label_keep": "values! list(label)",
    "stage.labels": "values! labels",
    "stage.limit": """
        rate! number
        burst! int
        by_label_name string
        drop bool
        max_distinct_labels int
        """,
    "stage.output": "source! string",
    "stage.regex": "expression! regex\nsource string\nlabels_from_groups bool",
    "stage.replace": "expression! regex\nreplace string\nsource string",
    "stage.static_labels": "values! labels",
    "stage.structured_metadata": "values labels",
    "stage.template": "source! string\ntemplate! string",
    "stage.timestamp": """
        source! string
        format! string
        action_on_failure skip|fudge
        fallback_formats list(string)
        location string
        """,
}


def _stages(depth: int = 2) -> dict[str, BlockSpec]:
    """The stages of a pipeline; `stage.match` holds a pipeline itself."""
    found = {name: _block(table, many=True) for name, table in _STAGES.items()}
    found["stage.metrics"] = _block(
        blocks={
            "metric.counter": _block(
                _METRIC + "action! inc|add\nmatch_all bool\ncount_entry_bytes bool", many=True
            ),
            "metric.gauge": _block(_METRIC + "action! set|inc|dec|add|sub", many=True),
            "metric.histogram": _block(_METRIC + "buckets! list(number)", many=True),
        },
        many=True,
    )
    found["stage.truncate"] = _block(
        blocks={
            "rule": _block(
                """
                limit! size
                suffix string
                source_type line|label|structured_metadata|extracted
                """,
                required=True,
                many=True,
            )
        },
        many=True,
    )
    if depth:
        found["stage.match"] = _block(
            """
            selector! selector
            action keep|drop
            drop_counter_reason string
            pipeline_name string
            """,
            _stages(depth - 1),
            many=True,
        )
    return found


COMPONENTS = {
    "logging": ComponentSpec(
        attributes=_attributes(
            "level error|warn|info|debug\nformat logfmt|json\nwrite_to list(LogsReceiver)"
        ),
        labelled=False,
    ),
    "loki.process": ComponentSpec(
        attributes=_attributes("forward_to! list(LogsReceiver)"),
        blocks=_stages(),
        exports={"receiver": "LogsReceiver"},
    ),
    "loki.source.api": ComponentSpec(
        attributes=_attributes(
            """
            forward_to! list(LogsReceiver)
            labels labels
            relabel_rules RelabelRules
            use_incoming_timestamp bool
            max_send_message_size size
            graceful_shutdown_timeout duration
            """
        ),
        blocks={
            "http": _block(
                """
                conn_limit int
                listen_address string
                listen_port int
                server_idle_timeout duration
                server_read_timeout duration
                server_write_timeout duration
                """
            )
        },
    ),
    "loki.source.file": ComponentSpec(
        attributes=_attributes(
            """
            forward_to! list(LogsReceiver)
            targets! list(target:__path__)
            encoding string
            legacy_positions_file string
            on_positions_file_error skip|restart_from_end|restart_from_beginning
            tail_from_end bool
            """
        ),
        blocks={
            "decompression": _block("enabled! bool\nformat! gz|z|bz2\ninitial_delay duration"),
            "file_match": _block("enabled bool\nignore_older_than duration\nsync_period duration"),
            "file_watch": _block("max_poll_frequency duration\nmin_poll_frequency duration"),
        },
    ),
    "loki.write": ComponentSpec(
        attributes=_attributes("external_labels labels\nmax_streams int"),
        blocks={
            # The page calls it optional; a loki.write without one fails to build.
            "endpoint": _block(
                _CLIENT
                + """
                url! url
                batch_size size
                batch_wait duration
                headers map(string)
                max_backoff_period duration
                max_backoff_retries int
                min_backoff_period duration
                name string
                remote_timeout duration
                retry_on_http_429 bool
                tenant_id string
                """,
                _CLIENT_BLOCKS,
                required=True,
                many=True,
            )
        },
        exports={"receiver": "LogsReceiver"},
    ),
    "prometheus.relabel": ComponentSpec(
        attributes=_attributes("forward_to! list(MetricsReceiver)\nmax_cache_size int"),
        blocks={"rule": _RULE},
        exports={"receiver": "MetricsReceiver", "rules": "RelabelRules"},
    ),
    "prometheus.remote_write": ComponentSpec(
        attributes=_attributes("external_labels labels"),
        blocks={
            "endpoint": _block(
                _CLIENT
                + """
                url! url
                headers map(string)
                name string
                protobuf_message prometheus.WriteRequest|io.prometheus.write.v2.Request
                remote_timeout duration
                round_robin_dns bool
                send_exemplars bool
                send_native_histograms bool
                """,
                {
                    **_CLIENT_BLOCKS,
                    "metadata_config": _block(
                        "max_samples_per_send int\nsend_interval duration\nsend bool"
                    ),
                    "queue_config": _block(
                        """
                        batch_send_deadline duration
                        capacity int
                        max_backoff duration
                        max_samples_per_send int
                        max_shards int
                        min_backoff duration
                        min_shards int
                        retry_on_http_429 bool
                        sample_age_limit duration
                        """
                    ),
                    "write_relabel_config": _RULE,
                },
                required=True,
                many=True,
            ),
            "wal": _block(
                "max_keepalive_time duration\nmin_keepalive_time duration\n"
                "truncate_frequency duration"
            ),
        },
        exports={"receiver": "MetricsReceiver"},
    ),
    "prometheus.scrape": ComponentSpec(
        attributes=_attributes(
            _CLIENT
            + """
            forward_to! list(MetricsReceiver)
            targets! list(target:__address__)
            body_size_limit int
            enable_compression bool
            honor_labels bool
            honor_timestamps bool
            job_name string
            label_limit int
            label_name_length_limit int
            label_value_length_limit int
            metrics_path string
            params map(list(string))
            sample_limit int
            scheme string
            scrape_classic_histograms bool
            scrape_interval duration
            scrape_native_histograms bool
            scrape_timeout duration
            target_limit int
            track_timestamps_staleness bool
            """
        ),
        blocks=_CLIENT_BLOCKS,
    ),
}

FUNCTIONS = {
    "array.combine_maps": "list(map(string))",
    "array.concat": "list",
    "convert.nonsensitive": "string",
    "encoding.from_base64": "string",
    "encoding.from_json": "any",
    "encoding.from_yaml": "any",
    "file.path_join": "string",
    "json_path": "any",
    "string.format": "string",
    "string.join": "string",
    "string.replace": "string",
    "string.split": "list(string)",
    "string.to_lower": "string",
    "string.to_upper": "string",
    "string.trim": "string",
    "string.trim_prefix": "string",
    "string.trim_space": "string",
    "string.trim_suffix": "string",
    "sys.env": "string",
}
"""Function to the type it returns; `coalesce` returns that of its arguments."""

CONSTANTS = {"constants.arch", "constants.hostname", "constants.os"}
