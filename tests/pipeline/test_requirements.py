"""A device that is not there is said once, in the words of whoever asked."""

import pytest
import torch
from typer.testing import CliRunner

import dpaudit
from dpaudit.commands.cli import app
from dpaudit.errors import ConfigError
from dpaudit.pipeline.requirements import torch_device
from tests.said import without_help

AUDIT = """\
data = { name = "digits", n_agents = 4 }
graph.name = "ring"
model.name = "logistic"
defense = { name = "dp-dpsgd", noise_multiplier = 1.0 }
claim = [{ text = "Theorem 1", epsilon = 0.5, delta = 1e-5 }]
"""


@pytest.fixture(autouse=True)
def no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.mark.parametrize("name", ["cuda", "cuda:1", torch.device("cuda")])
def test_cuda_is_refused_where_torch_sees_none(name) -> None:
    with pytest.raises(ConfigError, match="(?m)^the option: this torch sees no CUDA device$"):
        torch_device(name, "the option")
    assert torch_device("cpu", "the option") == torch.device("cpu")


@pytest.mark.slow
def test_every_way_in_says_so(tmp_path) -> None:
    audit, claims = tmp_path / "audit.toml", tmp_path / "claims.toml"
    audit.write_text(AUDIT)
    claims.write_text('[[check]]\nname = "a"\naudit = "audit.toml"\n')
    with pytest.raises(ConfigError, match='device = "cuda": this torch sees no CUDA device'):
        dpaudit.audit(audit, device="cuda")
    for command in (["audit", str(audit), "--out", str(tmp_path)], ["check", str(claims)]):
        done = CliRunner().invoke(app, [*command, "--device", "cuda"])
        assert done.exit_code == 2
        assert (
            without_help(done.stderr)
            .strip()
            .endswith("--device cuda: this torch sees no CUDA device")
        )
