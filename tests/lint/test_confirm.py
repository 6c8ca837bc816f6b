"""The audit that a page names finds its example, and does not accuse the correction."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dpaudit.codes import entries

OF_FUNCTIONS = [
    code for code, entry in entries().items() if entry.confirm.startswith("dpaudit mechanism FILE:")
]
MADE = {  # of a class: the object that is audited, wrong and right
    "DPA203": ("LocalNoise(1.0, 3.0)", "LocalNoise(1.0, 3.0, 20)"),
    "DPA210": ("LocalNoise(1.0, 0.5, 1.5)", "LocalNoise(1.0, 1.5)"),
}
OTHER = {"DPA207": ("", "--output-dtype float64")}  # options that only one of them needs
NO_FUNCTION = {"DPA202"}  # it sends; whose example is no function from a value to a value


def audited(folder: Path, code: str, which: int) -> subprocess.CompletedProcess[str]:
    entry = entries()[code]
    text = (entry.example, entry.instead)[which]
    if code in MADE:
        text += f"\n\nprivate = {MADE[code][which]}\n"
    (folder / "noise.py").write_text(text)
    command = entry.confirm.replace("FILE:FUNCTION", "noise.py:private")
    options = f"{OTHER.get(code, ('', ''))[which]} --runs 500 --quiet"
    words = shlex.split(f"{command} {options}")[1:]
    start = [sys.executable, "-m", "dpaudit.commands.cli", *words]
    return subprocess.run(start, cwd=folder, capture_output=True, text=True)


@pytest.mark.slow  # 20 s each; a right function is accused with probability at most 5%: fixed seed
@pytest.mark.parametrize("code", [code for code in OF_FUNCTIONS if code not in NO_FUNCTION])
def test_the_audit_of_a_page_finds_its_example_alone(code: str, tmp_path: Path) -> None:
    wrong = audited(tmp_path, code, 0)
    says_so = wrong.returncode == 2 and "DPA076" in wrong.stderr  # noise that it seeds itself
    assert wrong.returncode == 1 or says_so, wrong.stderr
    right = audited(tmp_path, code, 1)
    assert right.returncode == 0, right.stdout + right.stderr
