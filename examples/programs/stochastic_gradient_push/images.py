"""Random images in folders of classes, as stochastic_gradient_push reads ImageNet."""

from pathlib import Path

import torchvision

images = torchvision.datasets.FakeData(32, (3, 64, 64), num_classes=4)
for part, numbers in (("train", range(24)), ("val", range(24, 32))):
    for i in numbers:
        folder = Path("images", part, str(i % 4))
        folder.mkdir(parents=True, exist_ok=True)
        images[i][0].save(folder / f"{i}.png")
