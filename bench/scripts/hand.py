"""Trains scripts by hand, as ``python hand.py SEED SCRIPT ...`` with nothing of hadar loaded.

The libraries are loaded once, and each script is run by a fork of this process.
"""

import os
import runpy
import sys
from pathlib import Path

PRELOADED = ("torch", "datasets", "accelerate", "peft", "lightning")
PRELOADED_NAMES = {"transformers": ("GPT2LMHeadModel", "Trainer"), "trl": ("SFTTrainer",)}


def main() -> None:
    seed, *scripts = sys.argv[1:]
    for module in PRELOADED:
        __import__(module)
    for module, names in PRELOADED_NAMES.items():  # these two load a name when it is asked for
        __import__(module, fromlist=names)
    for script in scripts:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            print("script", Path(script).stem, flush=True)
            sys.argv = [script, "--seed", seed]
            runpy.run_path(script, run_name="__main__")
            return
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
