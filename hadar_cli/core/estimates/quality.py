"""Whether a figure of quality is better or worse than another: declared, or known by its name.

Names are read as whole words. Of a name that nobody knows nothing is concluded.
"""

from __future__ import annotations

import re

_MORE = """
    accuracy acc top1 top5 precision recall f1 auc auroc ap map iou miou dice bleu rouge meteor chrf
    em ndcg mrr psnr ssim r2 reward
"""
_LESS = """
    loss error err mse rmse mae mape perplexity ppl nll bpc wer cer fid kl distance
"""
KNOWN = {**dict.fromkeys(_MORE.split(), True), **dict.fromkeys(_LESS.split(), False)}


def higher_is_better(metric: str, declared: bool | None = None) -> bool | None:
    """As declared; else by the metric's name; None where that says nothing, or two things."""
    if declared is not None:
        return declared
    words = re.split(r"[^a-z0-9]+", metric.lower())
    found = {KNOWN[word] for word in words if word in KNOWN}
    return found.pop() if len(found) == 1 else None


def has_improved(before: float | None, after: float | None, higher: bool | None) -> bool | None:
    """Whether training made the figure better; None where nobody can tell."""
    if before is None or after is None or higher is None or before == after:
        return None
    return (after > before) is higher
