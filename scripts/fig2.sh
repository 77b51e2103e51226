#!/usr/bin/env bash
# Figure 2, gain over BN with batches of 10 and 32 and by memory size. 216 runs.
# Finished runs are not repeated and interrupted ones are resumed, so this may be started again at any time.
# Further flags are passed to every run: scripts/fig2.sh --base_path DATA. In parallel: python -m scripts.reproduce run fig2
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}

for seed in 0 1 2; do for model in er_ace derpp; do for norm in bn cn adab2n; do for batch in 10 32; do
    for memory in 500 2000; do
        $PYTHON main.py --model $model --norm $norm --dataset seq-cifar10 --buffer_size $memory --batch_size $batch --seed $seed "$@"
    done
    for dataset in seq-cifar100 seq-miniimg; do for memory in 2000 5000; do
        $PYTHON main.py --model $model --norm $norm --dataset $dataset --buffer_size $memory --batch_size $batch --seed $seed "$@"
    done; done
done; done; done; done
