"""Fewer runs than an audit's choose which record is attacked: any choice is as good here."""

import pytest

from dpaudit.game.worst_case import record


@pytest.fixture(autouse=True)
def _few_runs_choose_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "NUMBERS", 2**18)
