"""The server's page: chats and a live view, in files that a browser takes as they are.

No build step, nothing from another host, no inline script or style, no string that becomes markup unless
DOMPurify has cleaned it: the policy in `HEADERS` forbids them, so that a model's text which got into the page
as markup could neither run nor send anything anywhere. `tools/vendor_page.py` fetches the files in `vendor`.
"""

from __future__ import annotations

from importlib.resources import files

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def assets() -> dict[str, tuple[bytes, str]]:
    """Return the bytes and media type of each file, by its URL path ("/", "/page.js", ...).
    Files are sent with `headers`, and need no key: they hold no user data."""
    found = {}
    for folder, prefix in ((files(__name__), "/"), (files(__name__) / "vendor", "/vendor/")):
        for file in folder.iterdir():
            if media_type := TYPES.get(file.name[file.name.rfind(".") :]):
                path = "/" if file.name == "index.html" else f"{prefix}{file.name}"
                found[path] = (file.read_bytes(), media_type)
    return found


def headers(path: str) -> dict[str, str]:
    """Return the headers of a file. The name of one in `vendor` has its version: it never changes."""
    forever = {"Cache-Control": "public, max-age=31536000, immutable"}
    return HEADERS | (forever if path.startswith("/vendor/") else {})
