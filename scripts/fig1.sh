#!/usr/bin/env bash
# Figure 1, training stability: DER++ on Split CIFAR-100, recorded step by step. 3 runs; then python -m scripts.figures fig1
# Finished runs are not repeated and interrupted ones are resumed, so this may be started again at any time.
# Further flags are passed to every run: scripts/fig1.sh --base_path DATA. In parallel: python -m scripts.reproduce run fig1
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}

for norm in bn cn adab2n; do
    $PYTHON main.py --model derpp --norm $norm --dataset seq-cifar100 --buffer_size 2000 --probe stability --seed 0 "$@"
done
