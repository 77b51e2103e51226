#!/usr/bin/env bash
# Table 7, the share r of the current task in a batch, in both readings of its data set. 96 runs.
# Finished runs are not repeated and interrupted ones are resumed, so this may be started again at any time.
# Further flags are passed to every run: scripts/table7.sh --base_path DATA. In parallel: python -m scripts.reproduce run table7
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}

for seed in 0 1 2; do for model in derpp er_ace; do for share in 1 1/2 1/5 1/10 1/12 1/15 1/20 1/T; do
    flags="--norm bn --buffer_size 500 --replay_forward joint --current_share $share --seed $seed"  # ours: the paper names none
    $PYTHON main.py --model $model --dataset seq-cifar10 $flags "$@"  # what the caption says
    $PYTHON main.py --model $model --dataset seq-cifar100 --n_tasks 10 $flags "$@"  # what the numbers fit
done; done; done
