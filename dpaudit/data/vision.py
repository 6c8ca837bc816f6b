"""Importing torchvision beside a CPU build of torch.

The torchvision of the Python Package Index is linked against CUDA. Beside a CPU build of torch its
compiled operators do not load, and its import stops because it registers a fake kernel for an
operator that has no schema: ``RuntimeError: operator torchvision::nms does not exist``. Data sets,
transforms and classification models need none of those operators, so their schemas are enough.
"""

import importlib
import sys
from types import ModuleType

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[torch.library.Library] = []  # a schema lives as long as its Library


def torchvision() -> ModuleType:
    """The module torchvision, whatever it was linked against; its ``ops`` may be missing kernels.

    Raises:
        ImportError: it is not installed.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
    for name in [m for m in sys.modules if m == "torchvision" or m.startswith("torchvision.")]:
        del sys.modules[name]  # left half done by the failed import
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _libraries.append(library)
    return importlib.import_module("torchvision")
