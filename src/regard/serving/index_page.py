"""The server's front page: its routes, generated from its OpenAPI description, without scripts."""

from __future__ import annotations

import html
from typing import Any

STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem;
color-scheme:light dark}
code,pre{font-family:ui-monospace,monospace}pre{overflow-x:auto;padding:.6rem;border:1px solid #8886}
table{border-collapse:collapse}td{padding:.15rem .8rem .15rem 0;vertical-align:top}"""


def page(description: dict[str, Any]) -> str:
    """Return an HTML page for an OpenAPI description."""
    title = html.escape(description["info"]["title"])
    parts = [
        _route(path, verb, route)
        for path, verbs in description["paths"].items()
        for verb, route in verbs.items()
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>"
        f"<p>{html.escape(description['info']['description'])} Version "
        f"{html.escape(description['info']['version'])}; "
        f'for programs: <a href="openapi.json">openapi.json</a>.</p>{"".join(parts)}</body></html>'
    )


def _route(path: str, verb: str, route: dict[str, Any]) -> str:
    head = f"<h2><code>{verb.upper()} {html.escape(path)}</code></h2><p>{html.escape(route['summary'])}.</p>"
    if "requestBody" not in route:
        return head
    fields = route["requestBody"]["content"]["application/json"]["schema"]["properties"]
    rows = "".join(
        f"<tr><td><code>{name}</code></td><td>{html.escape(field.get('description', ''))}</td>"
        f"<td>{'' if field.get('default') is None else html.escape(repr(field['default']))}</td></tr>"
        for name, field in fields.items()
    )
    return f"{head}<table>{rows}</table>"
