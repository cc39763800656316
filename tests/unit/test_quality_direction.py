"""A metric's direction is declared, or known by whole words of its name; never guessed."""

import pytest

from hadar_cli.core.estimates.quality import has_improved, higher_is_better


@pytest.mark.parametrize(
    ("metric", "better"),
    [
        ("accuracy", True),
        ("val_accuracy", True),
        ("answer_em", True),  # "wer" is in it, and is no word of it
        ("f1", True),
        ("BLEU", True),
        ("loss", False),
        ("val/loss", False),
        ("perplexity", False),
        ("WER", False),
        ("word error rate", False),
        ("fid", False),
        ("mse", False),
        ("fidelity", None),  # so with "fid"
        ("power", None),
        ("lossless", None),
        ("score", None),
        ("accuracy_loss", None),  # it says two things
        ("", None),
    ],
)
def test_names_are_read_as_whole_words(metric, better):
    assert higher_is_better(metric) is better


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("metric", ["accuracy", "loss", "fidelity"])
def test_what_is_declared_holds(metric, declared):
    assert higher_is_better(metric, declared) is declared


@pytest.mark.parametrize(
    ("before", "after", "higher", "verdict"),
    [
        (0.1, 0.9, True, True),
        (0.9, 0.1, True, False),
        (3.0, 1.0, False, True),
        (1.0, 3.0, False, False),
        (0.1, 0.9, None, None),  # nothing is concluded
        (None, 0.9, True, None),
        (0.1, None, True, None),
        (0.5, 0.5, True, None),
    ],
)
def test_improvement_needs_a_direction(before, after, higher, verdict):
    assert has_improved(before, after, higher) is verdict
