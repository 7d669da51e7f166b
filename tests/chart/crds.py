"""The fields of the kinds of the Prometheus Operator and of the Gateway API that the chart writes, and nothing else: kubernetes-validate does not know them."""

from __future__ import annotations

from typing import Any, Final

TEXT: Final = {"type": "string", "minLength": 1}
TEXTS: Final = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION: Final = {"type": "string", "pattern": "^([0-9]+(ms|[smhdwy]))+$"}


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": list(required)}


def several(items: Any) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": items}


def kind(spec: dict[str, Any], name: str, version: str = "monitoring.coreos.com/v1") -> dict[str, Any]:
    return closed(
        *("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": version},
        kind={"const": name},
        metadata=closed("name", "labels", name=TEXT, labels=TEXTS, annotations=TEXTS),
        spec=spec,
    )


RELABELINGS: Final = several(
    closed(
        sourceLabels=several({"type": "string", "pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"}),
        separator={"type": "string"},
        targetLabel=TEXT,
        regex=TEXT,
        replacement={"type": "string"},
        action=TEXT,
    )
)
SECRET_KEY: Final = closed("key", "name", name=TEXT, key=TEXT, optional={"type": "boolean"})
ENDPOINT: Final = closed(
    "port",
    port=TEXT,
    path=TEXT,
    scheme={"enum": ["http", "https"]},
    interval=DURATION,
    scrapeTimeout=DURATION,
    authorization=closed("credentials", type=TEXT, credentials=SECRET_KEY),
    tlsConfig=closed(ca=closed(secret=SECRET_KEY), serverName=TEXT),
    relabelings=RELABELINGS,
    metricRelabelings=RELABELINGS,
)
RULE: Final = {
    **closed("expr", record=TEXT, alert=TEXT, expr=TEXT, labels=TEXTS, annotations=TEXTS, **{"for": DURATION}),
    "oneOf": [{"required": ["alert"]}, {"required": ["record"]}],
}
SCHEMAS: Final = {
    "ServiceMonitor": kind(
        closed("endpoints", "selector", endpoints=several(ENDPOINT), selector=closed(matchLabels=TEXTS)),
        "ServiceMonitor",
    ),
    "PrometheusRule": kind(
        closed("groups", groups=several(closed("name", "rules", name=TEXT, interval=DURATION, rules=several(RULE)))),
        "PrometheusRule",
    ),
    "HTTPRoute": kind(
        closed(
            *("parentRefs", "hostnames", "rules"),
            parentRefs=several(closed("name", name=TEXT, namespace=TEXT, sectionName=TEXT)),
            hostnames=several(TEXT),
            rules=several(
                closed("backendRefs", backendRefs=several(closed("name", "port", name=TEXT, port={"type": "integer"})))
            ),
        ),
        "HTTPRoute",
        "gateway.networking.k8s.io/v1",
    ),
}
"""The schema of each kind of object."""
