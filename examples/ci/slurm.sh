#!/usr/bin/env bash
# A Slurm job array: one GPU per shard, and one report of all.
#
#   export N=8; shards=$(sbatch --parsable --array=1-$N examples/ci/slurm.sh)
#   sbatch --dependency=afterany:$shards --wrap 'enginetest report --html report.html --json report.json reports'
#
# The folder is shared by the nodes. A shard whose node died is requeued and writes its report again: the file is whole or not
# there, and the report of all says which shard is missing.
#SBATCH --job-name=engine-tests
#SBATCH --gres=gpu:1
#SBATCH --time=01:00:00
#SBATCH --requeue
#SBATCH --output=slurm-%A-%a.out
set -uo pipefail
n=${N:-$SLURM_ARRAY_TASK_MAX}
mkdir -p reports
if command -v nvidia-smi >/dev/null; then
	enginetest wait --ratio 0.05 --timeout 10m || exit
fi
enginetest run --shard "$SLURM_ARRAY_TASK_ID/$n" --history "${HISTORY:-history}" --retries 1 --json "reports/$SLURM_ARRAY_TASK_ID.json" \
	-- go test "${PACKAGES:-./...}"
