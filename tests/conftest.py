"""How tests run. The process that hands them out imports nothing that they use."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from functools import cache

import pytest

gc.disable()  # until all are collected
WITHOUT_BYTECODE = sys.dont_write_bytecode
sys.dont_write_bytecode = False  # until then: rewriting the asserts of all tests takes seconds
# A shell that starts tests in the background lets them ignore what Ctrl+C sends, which some send.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Prepare a process that runs tests, which the one that only hands them out does not."""
    if config.getoption("numprocesses", None):
        return
    import typer.testing
    from hypothesis import settings

    from dpaudit.inputs import recorder

    config.pluginmanager.import_plugin("tests.problems")
    settings.register_profile("same examples in every run", derandomize=True, deadline=None)
    settings.load_profile("same examples in every run")
    # Hundreds of modules of tests are no inputs of an audit, each of which would hash them all.
    recorder.BESIDE = (*recorder.BESIDE, "tests")
    # This takes longer than many a command.
    typer.testing._get_command = cache(typer.testing._get_command)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with an argument ``own_defense`` is one of every defense of this repository."""
    if "own_defense" in metafunc.fixturenames:
        from tests.own_plugins import OWN

        metafunc.parametrize("own_defense", OWN)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Ten thousand tests are no garbage: looking for some among them takes seconds in all."""
    sys.dont_write_bytecode = WITHOUT_BYTECODE
    gc.enable()
    gc.collect()
    gc.freeze()


collect_ignore = ["example_attacks", "example_package"]  # packages that a test installs


@pytest.fixture(autouse=True, scope="session")
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The key of caches is not that of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("DPAUDIT_CACHE_KEY", raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_fsync() -> Iterator[None]:
    """What this process writes is not forced to the disk, which takes longer than many an audit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def no_report() -> Iterator[None]:
    from tests.small_audits import undrawn

    with undrawn():
        yield


@pytest.fixture
def report() -> None:
    """For tests that read the report of an audit of this process."""


@pytest.fixture(autouse=True)
def _no_report_that_nobody_reads(request: pytest.FixtureRequest) -> None:
    """Slow tests draw every report, unless they ask for none."""
    if "report" not in request.fixturenames and not request.node.get_closest_marker("slow"):
        request.getfixturevalue("no_report")
