#!/usr/bin/env bash
# Table 6, running time of ER-ACE on Split CIFAR-100; the layers alone: python -m scripts.bench norms. 12 runs.
# Finished runs are not repeated and interrupted ones are resumed, so this may be started again at any time.
# Further flags are passed to every run: scripts/table6.sh --base_path DATA. In parallel: python -m scripts.reproduce run table6
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}

for seed in 0 1 2; do for norm in bn gn cn adab2n; do
    $PYTHON main.py --model er_ace --norm $norm --dataset seq-cifar100 --buffer_size 2000 --seed $seed "$@"
done; done
