"""The catalog of built-in workloads: what the head needs to know without importing torch.

This file travels to the nodes with the scripts it lists, so it imports nothing of the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PRESETS = ("tiny", "paper")


@dataclass(frozen=True, slots=True)
class Workload:
    """One of the paper's five training jobs (its table of workloads), in two presets.

    ``epochs`` is how long it trains unless a mix, or the command line, says otherwise. On the
    paper's machines the ``paper`` presets then take about as long as the paper reports: by the
    throughput formula MM alone takes 1,250 s on an RTX 3090, against its 1,309 s.
    """

    name: str
    short: str
    title: str
    module: str
    metric: str
    higher_is_better: bool
    model_size: Mapping[str, str]
    dataset_size: str
    batch_size: Mapping[str, int]
    train_samples: Mapping[str, int]
    epochs: Mapping[str, int]

    def fields(self, preset: str) -> dict[str, Any]:
        """What a mix need not say of it."""
        return {
            "name": self.name,
            "batch_size": self.batch_size[preset],
            "samples": self.train_samples[preset],
            "epochs": self.epochs[preset],
            "model_size": self.model_size[preset],
            "dataset_size": self.dataset_size,
            "higher_is_better": self.higher_is_better,
        }


_WORKLOADS = (
    Workload(
        name="image_classification",
        short="IC",
        title="Image classification: ResNet-18 on CIFAR-10",
        module="hadar_cli.workloads.image_classification",
        metric="accuracy",
        higher_is_better=True,
        model_size={"tiny": "high", "paper": "modest"},
        dataset_size="S",
        batch_size={"tiny": 16, "paper": 128},
        train_samples={"tiny": 2400, "paper": 50_000},
        epochs={"tiny": 4, "paper": 60},
    ),
    Workload(
        name="language_model",
        short="LM",
        title="Language modelling: LSTM on WikiText-2",
        module="hadar_cli.workloads.language_model",
        metric="perplexity",
        higher_is_better=False,
        model_size={"tiny": "modest", "paper": "modest"},
        dataset_size="L",
        batch_size={"tiny": 32, "paper": 64},
        train_samples={"tiny": 9600, "paper": 59_675},  # 2,088,628 tokens in windows of 35
        epochs={"tiny": 8, "paper": 40},
    ),
    Workload(
        name="translation",
        short="LT",
        title="Language translation: Transformer on Multi30k, German to English",
        module="hadar_cli.workloads.translation",
        metric="accuracy",
        higher_is_better=True,
        model_size={"tiny": "modest", "paper": "high"},
        dataset_size="L",
        batch_size={"tiny": 32, "paper": 128},
        train_samples={"tiny": 6400, "paper": 29_000},
        epochs={"tiny": 6, "paper": 30},
    ),
    Workload(
        name="recommender",
        short="RS",
        title="Recommendation: Recoder-style autoencoder on ML-20M",
        module="hadar_cli.workloads.recommender",
        metric="mse",
        higher_is_better=False,
        model_size={"tiny": "modest", "paper": "small"},
        dataset_size="XL",
        batch_size={"tiny": 32, "paper": 500},
        train_samples={"tiny": 8000, "paper": 131_569},  # 138,493 users, one in 20 held out
        epochs={"tiny": 10, "paper": 200},
    ),
    Workload(
        name="weather",
        short="MM",
        title="Weather prediction: encoder-decoder Transformer on Mesonet and WRF-HRRR",
        module="hadar_cli.workloads.weather",
        metric="mse",
        higher_is_better=False,
        model_size={"tiny": "modest", "paper": "modest"},
        dataset_size="M",
        batch_size={"tiny": 32, "paper": 256},
        # Mesonet data differ from site to site: a mix that knows better says `samples`.
        train_samples={"tiny": 6400, "paper": 40_000},
        epochs={"tiny": 6, "paper": 110},
    ),
)

CATALOG: dict[str, Workload] = {workload.name: workload for workload in _WORKLOADS}


def lookup(name: str) -> Workload:
    """The workload called ``name``; the paper's short name (``IC``) serves as well."""
    by_short = {workload.short: workload for workload in _WORKLOADS}
    return by_short[name] if name in by_short else CATALOG[name]
