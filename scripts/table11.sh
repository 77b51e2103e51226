#!/usr/bin/env bash
# Table 11, forgetting in online Task-IL: the runs of Table 2.
exec "$(dirname "$0")/table2.sh" "$@"
