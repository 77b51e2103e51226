#!/usr/bin/env bash
# Figure 4, batch and population statistics of one layer: DER++ on Split CIFAR-100 and joint training, recorded step by step. 4 runs.
# Finished runs are not repeated and interrupted ones are resumed, so this may be started again at any time.
# Further flags are passed to every run: scripts/fig4.sh --base_path DATA. In parallel: python -m scripts.reproduce run fig4
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}

for norm in bn cn adab2n; do
    $PYTHON main.py --model derpp --norm $norm --dataset seq-cifar100 --buffer_size 2000 --probe statistics --seed 0 "$@"
done
$PYTHON main.py --model joint --norm bn --dataset seq-cifar100 --probe statistics --seed 0 "$@"
