#!/usr/bin/env bash
# Table 8, fine-tuning and joint training, in both readings of its data set. 36 runs.
# Finished runs are not repeated and interrupted ones are resumed, so this may be started again at any time.
# Further flags are passed to every run: scripts/table8.sh --base_path DATA. In parallel: python -m scripts.reproduce run table8
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}

for seed in 0 1 2; do for model in sgd joint; do for norm in bn cn adab2n; do
    $PYTHON main.py --model $model --norm $norm --dataset seq-cifar10 --seed $seed "$@"  # what the caption says
    $PYTHON main.py --model $model --norm $norm --dataset seq-cifar100 --n_tasks 10 --seed $seed "$@"  # what the numbers fit
done; done; done
