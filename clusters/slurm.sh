#!/usr/bin/env bash
# A sweep on Slurm: one job, with Ray on all of its nodes while the sweep runs. From the project's
# root, which must lie on a file system that the nodes share:
#
#   up       make install
#   submit   sbatch clusters/slurm.sh search_spaces/main_1m.yaml
#   down     scancel --name=triplu-ray
#
# Whatever follows the script goes to `triplu-ray sweep`; `sbatch --nodes=4 clusters/slurm.sh ...` takes
# more machines. The same line again goes on where a job was cut off, by the time limit or otherwise.
# Results are in results/, or in TRIPLU_RAY_STORE if that was set when the job was submitted.
#
# Whole nodes (--exclusive), because `ray symmetric-run` refuses a node on which any Ray runs, and ends
# every Ray of yours on it when the sweep is done: so ask for all GPUs and cores that a node has.
#SBATCH --job-name=triplu-ray
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=0
#SBATCH --time=04:00:00
#SBATCH --output=%x-%j.log
set -euo pipefail

cd "$SLURM_SUBMIT_DIR"
PATH="$PWD/.venv/bin:$PATH"
export TRIPLU_RAY_STORE="${TRIPLU_RAY_STORE:-$PWD/results}"

# The nodes of this job know this token, and nobody else does.
RAY_AUTH_TOKEN="$(python -c 'import secrets; print(secrets.token_hex(32))')"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
# Keeps the port of Ray's client shut, which nothing here uses.
export RAY_START_HOOK=triplu_ray.environment.without_ray_client
# A folder of its own on each node: users share /tmp, and Ray's default in it.
export RAY_TMPDIR="/tmp/triplu-ray-$SLURM_JOB_ID"
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=600

# Ray's head runs where this script runs, on the job's first node. Its address is the one it has on the
# way to the last node, for its name may stand for the loopback or for another network.
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
address="$(
  python - "${nodes[-1]}" <<'PYTHON'
import socket, sys

with socket.socket(type=socket.SOCK_DGRAM) as route, socket.socket() as free:
    route.connect((sys.argv[1], 9))
    free.bind(("", 0))
    print(f"{route.getsockname()[0]}:{free.getsockname()[1]}")
PYTHON
)"

# symmetric-run ends with 0 too if Ray did not start; the file says whether the sweep did.
swept="$(mktemp)"
trap 'rm -f "$swept"' EXIT
# shellcheck disable=SC2016 # for the inner shell, on the head
srun --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
  ray symmetric-run --address "$address" --min-nodes "${#nodes[@]}" \
  --num-cpus="$SLURM_CPUS_PER_TASK" --dashboard-host=127.0.0.1 \
  -- bash -c 'echo started >"$1"; RAY_ADDRESS="$2" exec triplu-ray sweep "${@:3}"' \
  sweep "$swept" "$address" "$@"
if [ ! -s "$swept" ]; then
  echo "Ray did not start, so nothing was swept; its logs are in $RAY_TMPDIR on each node" >&2
  exit 1
fi
srun --ntasks-per-node=1 rm -rf "$RAY_TMPDIR"
