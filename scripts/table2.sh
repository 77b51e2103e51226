#!/usr/bin/env bash
# Table 2, online Task-IL; the same runs make Table 3 (Class-IL) and Table 11 (forgetting). 288 runs.
# Finished runs are not repeated and interrupted ones are resumed, so this may be started again at any time.
# Further flags are passed to every run: scripts/table2.sh --base_path DATA. In parallel: python -m scripts.reproduce run table2
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}

for seed in 0 1 2; do for model in er_ace derpp; do for norm in bn ln in gn cn adab2n; do
    for memory in 500 2000; do
        $PYTHON main.py --model $model --norm $norm --dataset seq-cifar10 --buffer_size $memory --seed $seed "$@"
    done
    for memory in 2000 5000; do
        $PYTHON main.py --model $model --norm $norm --dataset seq-cifar100 --buffer_size $memory --seed $seed "$@"
        # the released code splits CIFAR-100 into 10 tasks
        $PYTHON main.py --model $model --norm $norm --dataset seq-cifar100 --n_tasks 10 --buffer_size $memory --seed $seed "$@"
        $PYTHON main.py --model $model --norm $norm --dataset seq-miniimg --buffer_size $memory --seed $seed "$@"
    done
done; done; done
