"""A worker that computes plans which another process has made: it has a model and pages, and no loop.

python plan_worker.py MODEL PLANS RESULTS
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np

from glassloop.model.transformer import Transformer
from glassloop.ops.native.ops import NativeOps


def main(model: Path, plans: Path, results: Path) -> None:
    config, weights, adapters, memory = pickle.loads(model.read_bytes())
    transformer = Transformer(config, weights, NativeOps())
    for adapter in adapters:
        transformer.load_adapter(adapter)
    pages = transformer.ops.cache(transformer.cache_specs, memory)
    logits = []
    for data in pickle.loads(plans.read_bytes()):
        plan = pickle.loads(data)
        logits.append(np.array(plan.compute(transformer.forward, pages)))
    results.write_bytes(pickle.dumps(logits))
    assert not {"glassloop.engine.loop", "glassloop.engine.tree"} & set(sys.modules)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
