"""Numbers that one file of a package imports from another."""

from pathlib import Path

import pytest

from dpaudit.lint.lint import lint

NOISE = """
import numpy as np
from {} import EPSILON, SEED


def private(update, clip_norm=1.0, delta=1e-5):
    clipped = update / max(1.0, np.linalg.norm(update) / clip_norm)
    sigma = clip_norm * np.sqrt(2 * np.log(1.25 / delta)) / EPSILON
    rng = np.random.default_rng(SEED)
    return clipped + rng.normal(0, sigma, update.shape)
"""
PLACES = [  # where it imports from, in which file it is, and in which file the numbers are
    (".settings", "package/noise.py", "package/settings.py"),
    ("..settings", "package/inner/noise.py", "package/settings.py"),
    ("package.settings", "package/inner/noise.py", "package/settings.py"),
    ("package", "package/inner/noise.py", "package/__init__.py"),
    ("settings", "noise.py", "settings.py"),
]


def codes(folder: Path, place: tuple[str, str, str], settings: str) -> list[str]:
    for name, text in ((place[1], NOISE.format(place[0])), (place[2], settings)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return [hint.code for hint in lint([folder / place[1]]).hints]


@pytest.mark.parametrize("place", PLACES)
def test_numbers_of_other_files_are_known(tmp_path: Path, place: tuple[str, str, str]) -> None:
    assert codes(tmp_path, place, "EPSILON = 8.0\nSEED = 0\n") == ["DPA204", "DPA211"]
    assert "DPA204" not in codes(tmp_path, place, "EPSILON = 0.5\nSEED = 0\n")


@pytest.mark.parametrize(
    "settings",
    [
        "EPSILON = 8.0\nEPSILON = 0.5\n",
        "EPSILON = 8.0\nEPSILON /= 80\n",
        "EPSILON: float\n",
        "def broken(:\n",
    ],
)
def test_what_is_no_one_number_stays_unknown(tmp_path: Path, settings: str) -> None:
    assert "DPA204" not in codes(tmp_path, PLACES[0], settings)


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real.py").write_text("EPSILON = 8.0\n")
    (tmp_path / "settings.py").symlink_to(tmp_path / "real.py")
    (tmp_path / "noise.py").write_text(NOISE.format("settings"))
    assert lint([tmp_path / "noise.py"]).hints == ()
