"""Observers as users name them, and what is wrong with how they do."""

from __future__ import annotations

import importlib.util
import re

import pytest

from hadar_cli.errors import InputError
from hadar_cli.observers.catalog import Choice, parse, require_installed


def test_an_observer_is_named_with_its_fields():
    asked = ["tensorboard", "mlflow:uri=https://lab:5000,experiment=vision"]
    assert parse(asked, "--observe") == [
        Choice("tensorboard", {}),
        Choice("mlflow", {"uri": "https://lab:5000", "experiment": "vision"}),
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tensorbord"], "did you mean 'tensorboard'?"),
        (["wandb:projekt=x"], "did you mean 'project'?"),
        (["wandb:mode=ofline"], "did you mean 'offline'?"),
        (["mlflow:uri"], "'uri' is not field=value"),
        (["mlflow", "mlflow:uri=x"], "mlflow is named twice"),
    ],
)
def test_a_bad_name_is_told_with_its_place(words, said):
    with pytest.raises(InputError, match=re.escape(said)) as caught:
        parse(words, "--observe")
    assert caught.value.field == "--observe" and caught.value.fix


def test_a_missing_library_is_told_with_the_command_that_brings_it(tmp_path, monkeypatch):
    """Also where a folder is called like it, as wandb leaves one in the working directory."""
    (tmp_path / "wandb").mkdir()
    find = importlib.util.find_spec
    folder = importlib.machinery.PathFinder.find_spec("wandb", [str(tmp_path)])
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: folder if name == "wandb" else find(name)
    )
    assert folder is not None and folder.origin is None
    with pytest.raises(InputError) as caught:
        require_installed(Choice("wandb", {}))
    assert caught.value.fix == "pip install 'hadar[wandb]'"
