"""`python docs/gallery.py` audits what the gallery shows, in two minutes, and keeps the results.

The site renders them. A Chromium on the path also takes the picture of a report for the first page.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from dpaudit.files.result import AuditResult

DOCS = Path(__file__).resolve().parent
PROGRAM = DOCS.parent / "examples" / "numpy-gossip" / "captured.toml"
RUNS = DOCS.parent / "build" / "gallery"
DPAUDIT = Path(sys.executable).with_name("dpaudit")
PICTURED, PICTURE, SIZE = "unsupported", DOCS / "images" / "report.png", "1280,960"


def main() -> None:
    for audit in (*sorted((DOCS / "gallery").glob("*.toml")), PROGRAM):
        run = RUNS / audit.stem
        shutil.rmtree(run, ignore_errors=True)
        subprocess.run([DPAUDIT, "audit", audit, "--out", run], cwd=audit.parent, check=False)
        result = AuditResult.read(run / "audit.json")
        kept = DOCS / "gallery" / audit.stem
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir()
        anywhere = result.provenance.model_copy(
            update={"platform": "", "git_commit": None, "git_dirty": None}
        )
        text = result.model_copy(update={"provenance": anywhere}).to_json()
        text = text.replace(str(audit.parent), audit.parent.name)
        (kept / "audit.json").write_text(text, "utf-8")
        for shown in (*run.glob("artifacts/*.png"), *run.glob("artifacts/*-text.json")):
            (kept / "artifacts").mkdir(exist_ok=True)
            shutil.copy(shown, kept / "artifacts")
    if chromium := shutil.which("chromium"):
        page = (RUNS / PICTURED / "report.html").resolve().as_uri()
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={SIZE}"]
        subprocess.run([chromium, *options, f"--screenshot={PICTURE}", page], check=True)


if __name__ == "__main__":
    main()
