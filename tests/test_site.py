"""The documentation site: it builds without a warning and without a network, and links lead on."""

import importlib.util
import os
import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType

import pytest
from click.testing import CliRunner

from tests.reports.browser import PHONE, WIDE, started

ROOT = Path(__file__).parents[1]
LINK = re.compile(
    r"(?<!!)\[[^\]]*\]\(([^)\s]*)\)|!\[[^\]]*\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\""
)
HEADING = re.compile(r"^#+ +(.+?)\s*$", re.M)
FENCE = re.compile(r"^( *)(```+)[^`\n]*\n.*?^\1\2[ \t]*$", re.M | re.S)


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("documentation_site", ROOT / "docs" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def made(site: ModuleType) -> dict[str, str]:
    """Every page that is made for the site, by its path within docs/."""
    return {path: text() for path, text in site.generated().items()}


@pytest.fixture(scope="module")
def texts(site: ModuleType, made: dict[str, str]) -> dict[str, str]:
    """Every page by its path in the repository, those that are made for the site among them."""
    pages = {f"docs/{path}": text for path, text in made.items() if path[0].islower()}
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    pages |= dict.fromkeys((f"docs/{path}" for path in site.reports()), "")
    return pages | {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}


def anchor(heading: str) -> str:
    """The name that a heading gets, on the site and where repositories are read."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading)
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def dead_links(texts: dict[str, str]) -> list[str]:
    """The links of pages to what is not there, as "page: link"."""
    headings = {
        page: {anchor(found) for found in HEADING.findall(FENCE.sub("", text))}
        for page, text in texts.items()
    }
    dead = []
    for page, text in texts.items():
        for link in ("".join(found) for found in LINK.findall(FENCE.sub("", text))):
            if re.match(r"[a-z]+:", link):
                continue
            target, _, name = link.partition("#")
            place = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
            place = place if target else page
            there = place in texts or (ROOT / place).exists()
            if not there or (name and name not in headings.get(place, {name})):
                dead.append(f"{page}: {link}")
    return dead


def test_every_relative_link_and_anchor_leads_somewhere(texts: dict[str, str]) -> None:
    assert len(texts) > 30
    assert dead_links(texts) == []


@pytest.mark.parametrize(
    "text, dead",
    [
        ("[a](b.md)", []),
        ("[a](b.md#two-words)", []),
        ("[a](#here)\n\n# Here", []),
        ("```\n[a](absent.md)\n```", []),
        ("[a](absent.md)", ["docs/a.md: absent.md"]),
        ("![a](absent.png)", ["docs/a.md: absent.png"]),
        ("[a](b.md#three)", ["docs/a.md: b.md#three"]),
        ('<img src="absent.png">', ["docs/a.md: absent.png"]),
    ],
)
def test_the_search_for_dead_links_finds_them(text: str, dead: list[str]) -> None:
    assert dead_links({"docs/a.md": text, "docs/b.md": "# B\n\n## `Two` words"}) == dead


def test_readers_are_sent_to_files_that_the_repository_has(site: ModuleType) -> None:
    """Pages at the top are read without the site, so they may not name what only it has."""
    made = {f"docs/{path}" for path in site.generated().keys() - site.committed().keys()}
    for page in ROOT.glob("*.md"):
        named = {"".join(link).partition("#")[0] for link in LINK.findall(page.read_text())}
        assert named & made == set(), page.name


def test_what_the_repository_has_of_made_pages_is_current(
    site: ModuleType, made: dict[str, str]
) -> None:
    """`python docs/site.py` writes them."""
    assert len(site.committed()) > 9
    for path in site.committed():
        assert (ROOT / "docs" / path).read_text() == made[path], path


def test_a_page_links_the_first_use_of_a_term_to_the_glossary(site: ModuleType) -> None:
    text = "# A claim\n\n`claim` [claim](x.md)\n\nA claim is a Claim; the user has a view: mu."
    linked = text.replace("A claim is", "A [claim](glossary.md#claim) is")
    assert site.with_terms(text) == linked.replace("mu.", "[mu](glossary.md#mu).")


def test_keys_are_described_by_the_models_that_read_them(texts: dict[str, str]) -> None:
    keys = texts["docs/reference/audit-file.md"]
    assert (
        "| `path` | text |  | an .npz file, or a folder of text, relative to the audit file |"
        in keys
    )
    assert "| `n_agents` | integer > 0, <= 16384 | `10` |" in keys
    assert '| `partition` | a table | `{ kind = "even" }` |' in keys
    assert '| `kind` | `"external"` or `"curious"` or `"colluding"` or `"final-model"` |' in keys
    defenses = texts["docs/reference/defense-options.md"]
    assert "## dpdl\n" in defenses
    assert "| `noise_multiplier` |" in defenses
    assert "## likelihood-ratio\n" in texts["docs/reference/attack-options.md"]
    assert "dpaudit.conformance" in texts["docs/reference/python.md"]


@pytest.mark.slow
def test_axe_finds_nothing_on_pages_of_the_site(tmp_path: Path) -> None:
    """A page of each kind: code, wide tables, signatures, results, a report, none.

    They are served: opened from the disk, they have no search, and 404.html no style.
    """
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(build, cwd=ROOT, check=True, env=environment, capture_output=True)
    pages = ("index", "ledger", "defenses", "reference/python", "results/frameworks")
    with started() as browser, served(tmp_path) as address:
        for theme, size in (("light", PHONE), ("dark", WIDE)):
            for page in (*pages, "reports/refuted", "404"):
                with browser.open(f"{address}/{page}.html", size, color_scheme=theme) as opened:
                    assert opened.violations() == [], page


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which a folder is served."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_fetches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command of `make docs`, in this process, which has imported what its pages are of.

    But without the index of the search, a sixth of the time: a slow test builds it.
    """
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")  # read when the theme is imported
    monkeypatch.chdir(ROOT)
    from material.plugins.search.plugin import SearchIndex
    from mkdocs.__main__ import cli

    monkeypatch.setattr(SearchIndex, "add_entry_from_context", lambda *_: None)
    done = CliRunner().invoke(cli, ["build", "--strict", "--site-dir", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "Documentation built" in done.stderr
    assert "WARNING" not in done.output
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > 30
    elsewhere = re.compile(
        r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^>]*>"
    )
    for page in pages:
        text = page.read_text()
        assert elsewhere.findall(text) == [], page.name
        assert "```" not in re.sub(r"<code>.*?</code>", "", text, flags=re.S), page.name
    imported = [
        p for p in tmp_path.rglob("*.css") if re.search(r"url\([\"']?https?:", p.read_text())
    ]
    assert imported == []
