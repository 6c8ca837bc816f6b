"""The audit that a page names finds its example, and does not accuse the correction."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpaudit.codes import entries
from dpaudit.commands.cli import app

OF_FUNCTIONS = [
    code for code, entry in entries().items() if entry.confirm.startswith("dpaudit mechanism FILE:")
]
STEP = """
def private(records):
    model = torch.nn.utils.skip_init(torch.nn.Linear, 5, 1, bias=False)  # which draws nothing
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    train(model, {loader}, optimizer, lambda out, y: out.mean(), 1.0, 4.0, 8)
    return -model.weight.detach()[0]
"""
MADE = {  # the function that is audited, of an example that is none; wrong and right
    "DPA202": 2 * ("""
def private(update):
    sent = []
    gossip(update, range(4), lambda to, message: sent.append(message), 1.4)
    return np.stack(sent)
""",),
    "DPA203": ("private = LocalNoise(1.0, 3.0)", "private = LocalNoise(1.0, 3.0, 20)"),
    "DPA206": 2 * ("private = lambda rows: private_mean(list(rows), 1.0, 4.0, 8)",),
    "DPA208": 2 * ("""
returned = private

def private(update):
    noised, beside = returned(update)
    return np.append(noised, list(beside.values()))
""",),
    "DPA210": ("private = LocalNoise(1.0, 0.5, 1.5)", "private = LocalNoise(1.0, 1.5)"),
    "DPA212": (
        STEP.format(loader="[(records, None)]"),
        STEP.format(loader="[[(x[None], None) for x in records]]"),
    ),
}  # fmt: skip
OTHER = {"DPA207": ("", "--output-dtype float64")}  # options that only one of them needs


def audited(folder: Path, code: str, which: int) -> subprocess.CompletedProcess[str]:
    entry = entries()[code]
    text = (entry.example, entry.instead)[which]
    if code in MADE:
        text += f"\n\n{MADE[code][which]}\n"
    (folder / "noise.py").write_text(text)
    command = entry.confirm.partition(", of ")[0].replace("FILE:FUNCTION", "noise.py:private")
    options = f"{OTHER.get(code, ('', ''))[which]} --runs 500 --quiet"
    words = shlex.split(f"{command} {options}")[1:]
    start = [sys.executable, "-m", "dpaudit.commands.cli", *words]
    return subprocess.run(start, cwd=folder, capture_output=True, text=True)


@pytest.mark.slow  # 20 s each; a right function is accused with probability at most 5%: fixed seed
@pytest.mark.parametrize("code", OF_FUNCTIONS)
def test_the_audit_of_a_page_finds_its_example_alone(code: str, tmp_path: Path) -> None:
    wrong = audited(tmp_path, code, 0)
    says_so = wrong.returncode == 2 and "DPA076" in wrong.stderr  # noise that it seeds itself
    assert wrong.returncode == 1 or says_so, wrong.stderr
    right = audited(tmp_path, code, 1)
    assert right.returncode == 0, right.stdout + right.stderr


def test_shuffled_batches_have_no_amplification() -> None:
    """DPA205: one epoch of a hundred batches, accounted as Poisson samples and as it is."""
    words = entries()["DPA205"].confirm
    epsilons = []
    for options in (words.partition(", with ")[0], words.rpartition("beside it ")[2]):
        given = shlex.split(options.removeprefix("dpaudit epsilon "))
        given = given if "--noise-multiplier" in given else ["--noise-multiplier", "1", *given]
        done = CliRunner().invoke(app, ["epsilon", *given])
        epsilons.append(float(re.findall(r"\d+\.\d+", done.output)[0]))
    assert epsilons[0] == 4.377  # of mu = 1
    assert epsilons[1] < 1


def test_each_rule_names_a_command() -> None:
    rules = [entry for code, entry in entries().items() if code > "DPA200"]
    assert {len(OF_FUNCTIONS) + 1} == {len(rules)}
    assert all(entry.confirm.startswith("dpaudit ") for entry in rules)
