#!/usr/bin/env bash
# Table 10, Wilcoxon signed-rank tests of AdaB2N against BN and CN: runs of Tables 2 and 4. 135 runs.
# Finished runs are not repeated and interrupted ones are resumed, so this may be started again at any time.
# Further flags are passed to every run: scripts/table10.sh --base_path DATA. In parallel: python -m scripts.reproduce run table10
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}

for seed in 0 1 2; do for model in er_ace derpp; do for norm in bn cn adab2n; do
    for memory in 500 2000; do
        $PYTHON main.py --model $model --norm $norm --dataset seq-cifar10 --buffer_size $memory --seed $seed "$@"
    done
    for dataset in seq-cifar100 seq-miniimg; do for memory in 2000 5000; do
        $PYTHON main.py --model $model --norm $norm --dataset $dataset --buffer_size $memory --seed $seed "$@"
    done; done
done; done; done
exec scripts/table4.sh "$@"
