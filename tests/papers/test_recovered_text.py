"""Text from one gradient: exact, and nothing where the rank is full."""

from dataclasses import replace

from dpaudit.data.datasets import load_dataset
from dpaudit.papers.declared import DECLARED
from dpaudit.papers.recovered_text import ROUGE_1, ROUGE_2, recovered


def test_single_sequences_are_recovered_without_full_ranks(context) -> None:
    context = replace(context, dataset=load_dataset("text"))
    settings = {"network": "gpt-tiny", "batches": 2, "batch_size": 1}
    exact = list(recovered({**settings, "width": 32}, 1, context))
    assert [(number.quantity, number.value) for number in exact] == [(ROUGE_1, 100), (ROUGE_2, 100)]
    full = list(recovered({**settings, "width": 8}, 1, context))
    assert [number.value for number in full] == [0, 0]


def test_batches_of_1_to_32_are_declared_for_both_networks() -> None:
    experiment = DECLARED["dager"]
    assert len(experiment.cells) == 12
    assert {c.settings["batch_size"] for c in experiment.cells} == {1, 2, 4, 8, 16, 32}
    assert experiment.published == ()
