#!/usr/bin/env bash
# Table 3, online Class-IL: the runs of Table 2.
exec "$(dirname "$0")/table2.sh" "$@"
