"""Looks at the built guide in Chromium: broken links, pages wider than the screen, pictures.

python -m tools.look_at_guide docs/guide
python -m tools.look_at_guide docs/guide --screenshots /tmp/pages --only index
"""

import argparse
import functools
import http.server
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from playwright.sync_api import sync_playwright

WIDTHS = (390, 1280)
SCHEMES = ("light", "dark")
TALLEST = 40_000  # pixels at the larger width

_FACTS = """() => ({
  width: document.documentElement.scrollWidth,
  height: document.documentElement.scrollHeight,
  wide: [...document.querySelectorAll("article *")]
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
    .filter(e => !e.closest(".scrolls, pre, .table-wrapper"))
    .map(e => e.tagName + "." + e.className).slice(0, 3),
  links: [...document.querySelectorAll("a[href]")].map(a => a.href),
  ids: [...document.querySelectorAll("[id]")].map(e => e.id),
  pictures: [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src),
  title: document.title,
  description: document.querySelector("meta[name=description]")?.content ?? "",
})"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Says nothing of each request."""


def _pages(folder: Path, only: str) -> list[str]:
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))
    return sorted(path for path in paths if only in path)


def _faults(page: Any, address: str, name: str, width: int, scheme: str) -> tuple[list[str], Any]:
    messages: list[str] = []
    page.on("pageerror", lambda error: messages.append(f"script: {error}"))
    page.goto(f"{address}/{name}", wait_until="load")
    facts = page.evaluate(_FACTS)
    if facts["width"] > width:
        messages.append(f"{facts['width']} px wide, because of {', '.join(facts['wide'])}")
    if facts["height"] > TALLEST and width == max(WIDTHS) and "genindex" not in name:
        messages.append(f"{facts['height']} px tall")
    messages += [f"picture {source} is not shown" for source in facts["pictures"]]
    wanted = ("title",) if name in ("genindex.html", "search.html") else ("title", "description")
    messages += [f"no {what}" for what in wanted if not facts[what]]
    return [f"{name}, {width} px, {scheme}: {message}" for message in messages], facts


def _broken_links(address: str, facts: dict[str, Any], folder: Path) -> Iterator[str]:
    """Yields the links within the guide that lead nowhere."""
    for name, page in facts.items():
        for link in page["links"]:
            target, anchor = urldefrag(urljoin(f"{address}/{name}", link))
            if not target.startswith(address):
                continue
            path = unquote(target.removeprefix(address).lstrip("/")) or "index.html"
            if not (folder / path).is_file():
                yield f"{name}: {link} leads to no file"
            elif anchor and path in facts and unquote(anchor) not in facts[path]["ids"]:
                yield f"{name}: {link} leads to no place in {path}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what is wrong; returns 0 if nothing is, 1 otherwise, 2 if there is no Chromium."""
    parser = argparse.ArgumentParser(prog="python -m tools.look_at_guide", description=__doc__)
    parser.add_argument("folder", type=Path, help="what `nox -s guide` wrote")
    parser.add_argument("--only", default="", help="pages whose paths contain this text")
    parser.add_argument("--screenshots", type=Path, help="a folder for a picture of each page")
    options = parser.parse_args(arguments)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("Chromium is not installed: expected `chromium` or `google-chrome`", file=sys.stderr)
        return 2
    handler = functools.partial(_Quiet, directory=str(options.folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    faults, facts = [], {}
    names = _pages(options.folder, options.only)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width in WIDTHS:
            for scheme in SCHEMES:
                context = browser.new_context(
                    viewport={"width": width, "height": 844}, color_scheme=scheme
                )
                for name in names:
                    page = context.new_page()
                    of_page, facts[name] = _faults(page, address, name, width, scheme)
                    faults += of_page
                    if options.screenshots is not None:
                        stem = name.replace("/", "_").removesuffix(".html")
                        file = options.screenshots / f"{stem}-{width}-{scheme}.png"
                        page.screenshot(path=file)
                    page.close()
                context.close()
        browser.close()
    server.shutdown()
    faults += dict.fromkeys(_broken_links(address, facts, options.folder))
    print("\n".join(faults) or f"{len(names)} pages at {WIDTHS} px, {SCHEMES}: no fault")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
