"""The HTML of the report: one file, no script, nothing fetched from anywhere.

Whatever the policy or a sandbox wrote is text of unknown authors; every value passes `escape`.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape as escape_markup
from typing import Any

from venusrl.report.run_data import Record
from venusrl.report.text import visible

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0.2rem; }
h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd; }
img { width: 100%; height: auto; }
table { border-collapse: collapse; margin: 0.8rem 0; }
td, th { padding: 0.2rem 1.2rem 0.2rem 0; text-align: left; vertical-align: top; }
th { color: #666; font-weight: 600; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.headline { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1rem 0; }
.figure { background: #f4f6f9; border-radius: 6px; padding: 0.6rem 1rem; min-width: 7.5rem; }
.figure b { display: block; font-size: 1.35rem; font-weight: 600; }
.note { color: #666; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; }
.episode { border: 1px solid #ddd; border-radius: 6px; padding: 0.6rem 0.9rem; margin: 0.6rem 0;
           min-width: 0; }
pre { background: #f7f7f5; padding: 0.4rem 0.6rem; margin: 0.3rem 0; overflow-x: auto;
      white-space: pre-wrap; overflow-wrap: anywhere; font-size: 13px; }
pre.command { background: #eef3fa; }
.solved { color: #2f6f1f; } .unsolved { color: #a33; } .failed { color: #777; }
"""

# Forbids what the page must not do even if an escape were missing.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def escape(text: str) -> str:
    return escape_markup(visible(text))


def page(title: str, parts: Iterable[str]) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def heading(text: str, note: str = "") -> str:
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<h2>{escape(text)}</h2>{below}"


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def headline(figures: Sequence[tuple[str, str]]) -> str:
    boxes = "".join(
        f'<div class="figure">{escape(name)}<b>{escape(value)}</b></div>' for name, value in figures
    )
    return f'<div class="headline">{boxes}</div>'


def plot(svg: str, description: str) -> str:
    # As an image, because identifiers inside several inline SVG documents would clash.
    data = base64.b64encode(svg.encode()).decode()
    return f'<img alt="{escape(description)}" src="data:image/svg+xml;base64,{data}">'


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f'<td class="number">{value:.3g}</td>'
    if isinstance(value, int):
        return f'<td class="number">{value}</td>'
    return f"<td>{escape(str(value))}</td>"


def episode(record: Record, title: str) -> str:
    """One whole episode to read."""
    parts = [
        f'<b>{escape(title)}</b> <span class="{escape(record["outcome"])}">'
        f"{escape(record['outcome'])}</span>"
    ]
    for turn in record["turns"]:
        parts.append(f'<pre class="command">{escape(turn["text"]) or "(nothing: ends)"}</pre>')
        if turn["observation"]:
            parts.append(f"<pre>{escape(turn['observation'])}</pre>")
    if record["failure"]:
        parts.append(f"<p>{escape(record['failure'])}</p>")
    return f'<div class="episode">{"".join(parts)}</div>'


def compared(before: Record, after: Record) -> str:
    return (
        f"<h3>{escape(after['family'])}</h3>{paragraph(after['prompt'])}"
        f'<div class="pair">{episode(before, "before")}{episode(after, "after")}</div>'
    )


def definition(values: Mapping[str, Any]) -> str:
    return table(("", ""), [(name, "–" if v is None else v) for name, v in values.items()])
