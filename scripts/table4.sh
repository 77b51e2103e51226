#!/usr/bin/env bash
# Table 4, offline Task-IL and Class-IL on Split Mini-ImageNet: 50 epochs a task, batches of 32. 27 runs.
# Finished runs are not repeated and interrupted ones are resumed, so this may be started again at any time.
# Further flags are passed to every run: scripts/table4.sh --base_path DATA. In parallel: python -m scripts.reproduce run table4
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}

for seed in 0 1 2; do for model in er_ace derpp er_ace_lider; do for norm in bn cn adab2n; do
    $PYTHON main.py --model $model --norm $norm --dataset seq-miniimg --scenario offline --buffer_size 2000 --seed $seed "$@"
done; done; done
