#!/usr/bin/env bash
# Figure 3, AdaB2N by kappa and lambda: DER++ on Split CIFAR-100. 48 runs.
# Finished runs are not repeated and interrupted ones are resumed, so this may be started again at any time.
# Further flags are passed to every run: scripts/fig3.sh --base_path DATA. In parallel: python -m scripts.reproduce run fig3
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}

for seed in 0 1 2; do for kappa in 0.1 0.4 0.7 1.0; do for lambda in 0.01 0.1 1.0 10.0; do
    $PYTHON main.py --model derpp --norm adab2n --dataset seq-cifar100 --buffer_size 2000 --kappa $kappa --lambd $lambda --seed $seed "$@"
done; done; done
