"""The premises of programs of torch.distributed: the example made right, and faults of it."""

from pathlib import Path
from typing import Any

import pytest

from dpaudit.capture.audit import run_captured
from dpaudit.errors import RunError
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.result import JudgedClaim
from dpaudit.files.verdict import Verdict

pytestmark = pytest.mark.slow
EXAMPLE = Path(__file__).parents[2] / "examples" / "torch-distributed" / "train.py"
OF_THE_BATCH = """\
    model.zero_grad()
    loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y, reduction="sum")
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), BATCH * CLIP)
    return torch.cat([p.grad.flatten() for p in model.parameters()])
"""
OF_EACH_RECORD = """\
    total = 0
    for one, label in zip(x.split(1), y.split(1)):
        model.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(one)[:, 0], label)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        total = total + torch.cat([p.grad.flatten() for p in model.parameters()])
    return total
"""
NOISE, SENT = "        noise = SIGMA", "        dist.all_gather(models, mine)\n"
GATHERED = "        models = [torch.empty_like(mine) for _ in range(n)]\n" + SENT
OBJECTS = """\
        models = [None] * n
        dist.all_gather_object(models, {"rank": rank, "said": "model", "model": mine})
        models = [one["model"] for one in models]
"""
LOSS = """\
        loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y).detach()
        dist.all_gather([torch.empty_like(loss) for _ in range(n)], loss)
"""
FAULTS = {
    "clip of the batch": (OF_EACH_RECORD, OF_THE_BATCH, "distance"),
    "no clip far out": ("CLIP)\n        total", "CLIP if one.norm() < 1e5 else 1e9)\n        total", "distance"),
    "norm in an object": (GATHERED, OBJECTS.replace("\"model\", ", "float(step.norm()), "), "composition"),
    "text in an object": (GATHERED, OBJECTS.replace("\"model\", ", "str(step.norm()), "), ""),
    "low noise": (NOISE, "        noise = 0.9 * SIGMA", "composition"),
    "noise for half": (NOISE, "        noise = (torch.arange(11) < 5) * SIGMA", ""),  # or refused
    "one seed": ("secret.seed()", "secret.manual_seed(rank)", "noise"),
    "loss beside": (SENT, SENT + LOSS, "composition"),
    "no noise once": (NOISE, "        noise = (_ != 3) * SIGMA", "composition"),
    "used twice": ("total = 0\n", "total = 0\n    x, y = torch.cat([x[:1], x]), torch.cat([y[:1], y])\n", "distance"),
    "count": (SENT, SENT + "        if float(step.norm()) > 3:\n    " + SENT, ""),
    "remembered": (NOISE, "        kept = step = step + (0.5 * kept if _ else 0)\n" + NOISE, "state"),
}  # fmt: skip


def audited(folder: Path, *change: str) -> JudgedClaim:
    text = EXAMPLE.read_text()
    for before, after in ((OF_THE_BATCH, OF_EACH_RECORD), *([change] if change else [])):
        assert before in text
        text = text.replace(before, after, 1)
    (folder / "train.py").write_text(text)
    [line] = [i for i, said in enumerate(text.splitlines(), 1) if "generator=secret" in said]
    content: dict[str, Any] = {
        "program": {
            "command": ("torchrun", "--standalone", "--nproc-per-node", "2", "train.py"),
            "ranks": 2,
            "folder": folder,
        },
        "noise": {"sites": (f"train.py:{line}",)},
        "record": {"victims": (0, 1), "candidates": ("present",)},
        "certify": {"runs": 0},
        "claim": ({"text": "a round", "mu": 1.0, "scope": "round"},),
    }
    [claim] = run_captured(CapturedConfig.model_validate(content), folder / "out").claims
    return claim


def test_the_example_made_right_is_supported(tmp_path: Path) -> None:
    claim = audited(tmp_path)
    assert claim.verdict is Verdict.SUPPORTED, claim.reason
    assert claim.range is not None
    assert claim.range.measured < 1.15 * claim.range.accounted


def test_numbers_of_objects_are_messages(tmp_path: Path) -> None:
    claim = audited(tmp_path, GATHERED, OBJECTS)
    assert claim.verdict is Verdict.SUPPORTED, claim.reason


@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_is_supported(tmp_path: Path, fault: str) -> None:
    *change, premise = FAULTS[fault]
    try:
        claim = audited(tmp_path, *change)
    except RunError:
        assert not premise
        return
    assert claim.verdict is not Verdict.SUPPORTED
    missing = [one.name for one in claim.missing]
    assert premise in missing if premise else missing
