"""Set a figure's SVG, and words of our notes, into a page."""

from __future__ import annotations

import html
import re

from markupsafe import Markup, escape

from rlvr.reporting.style import THEME_INKS

_ID = re.compile(r'\bid="([^"]+)"')
_LINK = re.compile(r'(\bxlink:href="#|\bhref="#|url\(#)([^")]+)')
_SIZE = re.compile(r'\s(?:width|height)="[^"]*"')
_METADATA = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_LONG = re.compile(r"[^\s<>&;]{25,}")  # a name that leaves its column no room
_OUTSIDE = re.compile(r'(?:xlink:)?href="(?!#)|url\((?!#)|<script|<foreignObject|\son\w+=', re.IGNORECASE)


def inline_svg(svg: str, prefix: str, alt: str) -> str:
    """Return the ``<svg>`` element ready for a page.

    Ids get ``prefix`` in front, so that two figures cannot draw with each other's clip paths or glyphs. The
    inks of :mod:`rlvr.reporting.style` become variables of the page, so that the figure follows its theme.

    Raises:
        ValueError: no ``<svg>`` element; a script or something loaded from elsewhere; a link to an id that it
            lacks.
    """
    start = svg.find("<svg")
    if start < 0:
        raise ValueError(f"figure {prefix}: no <svg> element")
    if found := _OUTSIDE.search(svg[start:]):
        raise ValueError(
            f"figure {prefix}: {found.group(0)!r} runs or loads something; a page must stand alone"
        )
    body = _METADATA.sub("", svg[start:].strip())
    ids = set(_ID.findall(body))
    if dangling := sorted({target for _, target in _LINK.findall(body)} - ids):
        raise ValueError(f"figure {prefix}: links to the ids {dangling}, which it does not have")
    body = _ID.sub(lambda m: f'id="{prefix}-{m.group(1)}"', body)
    body = _LINK.sub(lambda m: f"{m.group(1)}{prefix}-{m.group(2)}", body)
    for ink, variable in THEME_INKS.items():
        body = re.sub(f"{ink}\\b", f"var({variable}, {ink})", body, flags=re.IGNORECASE)
    end = body.index(">")
    tag = _SIZE.sub("", body[:end])
    label = html.escape(alt, quote=True)
    return f'{tag} role="img" aria-label="{label}">{body[end + 1 :]}'


def inline_text(text: str) -> Markup:
    """A text as a page shows it: `code` between backticks, and long names may break after their dots."""
    marked = _CODE.sub(r"<code>\1</code>", str(escape(text)))
    return Markup(_LONG.sub(lambda m: re.sub(r"([._/(=])(?=\w)", r"\1<wbr>", m.group(0)), marked))
