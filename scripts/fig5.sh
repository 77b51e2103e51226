#!/usr/bin/env bash
# Figure 5, gain over BN with reservoir sampling and with a ring buffer. 216 runs.
# Finished runs are not repeated and interrupted ones are resumed, so this may be started again at any time.
# Further flags are passed to every run: scripts/fig5.sh --base_path DATA. In parallel: python -m scripts.reproduce run fig5
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}

for seed in 0 1 2; do for model in er_ace derpp; do for norm in bn cn adab2n; do for mode in reservoir ring; do
    for memory in 500 2000; do
        $PYTHON main.py --model $model --norm $norm --dataset seq-cifar10 --buffer_size $memory --buffer_mode $mode --seed $seed "$@"
    done
    for dataset in seq-cifar100 seq-miniimg; do for memory in 2000 5000; do
        $PYTHON main.py --model $model --norm $norm --dataset $dataset --buffer_size $memory --buffer_mode $mode --seed $seed "$@"
    done; done
done; done; done; done
