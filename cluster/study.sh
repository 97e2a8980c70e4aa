#!/usr/bin/env bash
# Examines the cluster, one GPU of each node and its driver too; then public data, and the study
# beside this file. Run again, it goes on where it was cut off.
# Usage: bash cluster/study.sh OUT [OPTION of raybias run]...
set -euo pipefail
cd "$(dirname "$0")"
raybias doctor
out=${1:?OUT is missing: give a URI that all nodes reach, such as s3://bucket/study}
for name in sst5 amazon; do
    raybias data download "$name" --out "data/$name"
done
exec raybias run study.yaml --out "$out" "${@:2}"
