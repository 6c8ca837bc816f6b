import subprocess
import sys
import types

import pytest
import torch

from dpaudit.data import vision

NMS = RuntimeError("operator torchvision::nms does not exist")

USE = """
from dpaudit.data.vision import torchvision
tv = torchvision()
assert torchvision() is tv
import torch, torchvision.datasets, torchvision.transforms.v2
x = torch.randint(0, 256, (2, 3, 40, 40), dtype=torch.uint8)
x = torchvision.transforms.v2.functional.to_dtype(x, torch.float32, scale=True)
assert tv.models.resnet18(num_classes=7)(x).shape == (2, 7)
assert tv.datasets.CIFAR10.__module__ == "torchvision.datasets.cifar"
"""


@pytest.mark.slow
def test_models_and_datasets_work_in_a_fresh_process() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", USE], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


class Importer:
    """Stands in for importlib: fails as torchvision does as long as nms has no schema."""

    def __init__(self, error: Exception) -> None:
        self.error, self.calls = error, 0

    def import_module(self, name: str) -> types.ModuleType:
        self.calls += 1
        if self.calls == 1:
            sys.modules["torchvision.half_done"] = types.ModuleType("torchvision.half_done")
            raise self.error
        assert "torchvision.half_done" not in sys.modules
        return types.ModuleType(name)


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
        monkeypatch.setitem(sys.modules, name, sys.modules[name])
    monkeypatch.setattr(vision, "_SCHEMAS", ("dpaudit_test(Tensor x) -> Tensor",))


def test_schemas_are_defined_after_the_failure_they_repair(
    modules: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vision, "importlib", importer := Importer(NMS))
    assert vision.torchvision().__name__ == "torchvision"
    assert importer.calls == 2
    assert hasattr(torch.ops.torchvision, "dpaudit_test")


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), ModuleNotFoundError("absent")])
def test_any_other_failure_is_left_alone(
    modules: None, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(vision, "importlib", importer := Importer(error))
    with pytest.raises(type(error), match=str(error)):
        vision.torchvision()
    assert importer.calls == 1
    del sys.modules["torchvision.half_done"]
