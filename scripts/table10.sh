#!/usr/bin/env bash
# Table 10, Wilcoxon signed-rank tests: the runs of Tables 2 and 4.
set -euo pipefail
"$(dirname "$0")/table2.sh" "$@"
"$(dirname "$0")/table4.sh" "$@"
