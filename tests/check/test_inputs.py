"""An audit is made again when anything that it read changed; the audits are stubs."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.check import stub_audits
from tests.check.stub_audits import runs
from tests.some_fast import fast_if

check = partial(stub_audits.check, forks=False)  # whose reads are recorded from the first
IMPORTS = "import {0}\ndef step(): {0}.value\n"
LAZY = "def step():\n    import helper\n"
OPENS = "def step():\n    open('values.txt').read()\n"
GUESSES = """
try:
    import faster
except ImportError:
    pass
def step(): pass
"""
OPTIONAL = """
def step():
    try:
        open('values.txt')
    except OSError:
        pass
"""
LISTS = "import glob\ndef step(): glob.glob('folder/*.json')\n"
MAPS = """
import mmap
def step():
    with open('values.txt', 'rb') as file:
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
"""
CHILD = """
import subprocess, sys
def step(): subprocess.run([sys.executable, '-c', "open('values.txt').read()"], check=True)
"""
SPAWNED = """
import multiprocessing, pathlib, sys, types
def step():
    sys.modules['__main__'] = types.ModuleType('__main__')  # no script that runs again
    with multiprocessing.get_context('spawn').Pool(1) as pool:
        pool.map(pathlib.Path.read_text, [pathlib.Path('values.txt')])
"""
FORKED = """
import os
def step():
    child = os.fork()
    if child == 0:
        open('values.txt').read()
        os._exit(0)
    os.waitpid(child, 0)
"""
NUMPY = "import numpy\ndef step(): numpy.load('values.npy')\n"
DESCRIPTOR = "import os\ndef step(): os.read(os.open('values.txt', os.O_RDONLY), 9)\n"
ADDS = "def step():\n    open('values.txt', 'a').close()\n    open('values.txt').read()\n"
MAKES = """
import os, pathlib
def step():
    os.makedirs('folder', exist_ok=True)
    pathlib.Path('folder/values.txt').read_text()
"""
MOVES = """
import os, shutil
def step():
    shutil.copy('values.txt', 'copy.txt')
    os.replace('copy.txt', 'moved.txt')
    open('moved.txt').read()
"""
SHELL = "import os\ndef step(): os.system('cat values.txt')\n"
PROGRAM = "import subprocess\ndef step(): subprocess.run(['cat', 'values.txt'])\n"
PIPE = """
import os, threading
def step():
    threading.Thread(target=lambda: open('pipe', 'w').write('1')).start()
    open('pipe').read()
"""
BLIND = """
import subprocess, sys
def step(): subprocess.run([sys.executable, '-I', '-c', "open('values.txt').read()"])
"""


@pytest.fixture
def folder(folder: Path) -> Path:
    """With files to read, and modules in several places."""
    for name in ("folder", "elsewhere", "path/space", "linked"):
        (folder / name).mkdir(parents=True)
    for name in ("values.txt", "folder/values.txt"):
        (folder / name).write_text("1")
    for name in ("path/onpath.py", "code/helper.py", "path/space/part.py", "linked/deep.py"):
        (folder / name).write_text("value = 1\n")
    (folder / "code" / "behind").symlink_to(folder / "linked")
    (folder / "link.txt").symlink_to(folder / "values.txt")
    return folder


def checked(folder: Path, code: str | None = None) -> tuple[int, str]:
    """How often the audit has run when it is checked again, and what is printed."""
    if code is not None:
        (folder / "code" / "mine.py").write_text(code)
    path = os.pathsep.join([str(folder / "path"), str(Path(__file__).parents[2])])
    code, out, error = check(folder, STUB_STEPS="1", PYTHONPATH=path)
    assert code == 1, error
    return runs(folder), out


def writes(name: str, text: str = "value = 2\n") -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)

    return change


def relinks(folder: Path) -> None:
    (folder / "link.txt").unlink()
    (folder / "link.txt").symlink_to(folder / "folder" / "values.txt")
    (folder / "folder" / "values.txt").write_text("3")


CASES = {
    "a module on PYTHONPATH": (IMPORTS.format("onpath"), writes("path/onpath.py")),
    "a module that is imported late": (LAZY, writes("code/helper.py")),
    "a namespace package": (IMPORTS.format("space.part"), writes("path/space/part.py")),
    "a folder behind a link": (IMPORTS.format("behind.deep"), writes("linked/deep.py")),
    "a module that would hide another": (IMPORTS.format("onpath"), writes("code/onpath.py")),
    "a package that would hide it": (IMPORTS.format("onpath"), writes("code/onpath/__init__.py")),
    "a part of a namespace": (IMPORTS.format("space.part"), writes("code/space/part.py")),
    "a module that is there now": (GUESSES, writes("path/faster.py")),
    "a file": (OPENS, writes("values.txt")),
    "a file that is read at import": ("open('values.txt').read()\n" + LAZY, writes("values.txt")),
    "a file that is there now": (OPTIONAL.replace("values", "new"), writes("new.txt")),
    "another link": (OPENS.replace("values", "link"), relinks),
    "a file in a listed folder": (LISTS, writes("folder/new.json")),
    "a mapped file": (MAPS, writes("values.txt")),
    "a descriptor": (DESCRIPTOR, writes("values.txt")),
    "a file of a Python child": (CHILD, writes("values.txt")),
    "a file of a fork": (FORKED, writes("values.txt")),
    "a file of a spawned worker": (SPAWNED, writes("values.txt")),
    "a file in a folder that was there": (MAKES, writes("folder/values.txt")),
    "a file that is added to": (ADDS, writes("values.txt")),
    "a file under its new name": (MOVES, writes("values.txt")),
}


@pytest.mark.parametrize("case", fast_if("a file of a Python child".__eq__, CASES))
def test_an_audit_runs_again_once_its_input_changed(folder: Path, case: str) -> None:
    code, change = CASES[case]
    assert checked(folder, code)[0] == 1
    assert checked(folder)[0] == 1
    change(folder)
    assert checked(folder)[0] == 2
    assert checked(folder)[0] == 2


def test_which_input_changed_is_said(folder: Path) -> None:
    checked(folder, OPENS)
    writes("values.txt")(folder)
    assert f'note: "first": {folder / "values.txt"} changed, so the audit' in checked(folder)[1]


@pytest.mark.slow
def test_an_array_that_changed_is_another_input(folder: Path) -> None:
    save = "import numpy, sys; numpy.save('values.npy', [float(sys.argv[1])])"
    for i, n in enumerate([1, 2]):
        subprocess.run([sys.executable, "-c", save, str(i)], cwd=folder, check=True)
        assert checked(folder, NUMPY)[0] == n
        assert checked(folder)[0] == n


@pytest.mark.parametrize("case", fast_if(PROGRAM.__eq__, [SHELL, PROGRAM, PIPE, BLIND]))
def test_an_audit_whose_inputs_are_unknown_runs_again(folder: Path, case: str) -> None:
    os.mkfifo(folder / "pipe")
    said = 'note: "first": its audit runs again in each check: it '
    assert said in checked(folder, case)[1]
    assert checked(folder)[0] == 2


OUTPUTS = """
import os, tempfile
def step():
    with open('log.txt', 'w') as log:
        log.write(str(os.getpid()))
    open('log.txt').read()
    with tempfile.TemporaryDirectory() as folder, open(f'{folder}/x', 'w') as file:
        file.write('1')
        file.flush()
        open(f'{folder}/x').read()
        os.listdir(folder)
    os.makedirs('made', exist_ok=True)
    with open('made/own', 'w') as file:
        file.write('1')
"""


def test_what_an_audit_writes_is_no_input(folder: Path) -> None:
    for _ in range(3):
        n, out = checked(folder, OUTPUTS)
        assert n == 1, out
        (folder / "path" / "__pycache__").mkdir(exist_ok=True)
        writes("path/unused.py")(folder)
        writes("dpaudit/check.xml")(folder)


def test_a_folder_that_moves_keeps_its_audits(folder: Path) -> None:
    assert checked(folder, OPENS)[0] == 1
    moved = folder.rename(folder.with_name("moved"))
    assert checked(moved)[0] == 1
    writes("values.txt")(moved)
    assert checked(moved)[0] == 2
