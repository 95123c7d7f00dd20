#!/bin/bash
# A Slurm batch job: Ray on every node of the allocation, and one run on all of them.
#   sbatch examples/cluster/slurm.sh
# Adapt the three lines below to your cluster. Tried only with stand-ins for srun and scontrol; see docs/cluster.md.
#SBATCH --job-name=fedpbc
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --exclusive
#SBATCH --time=04:00:00
set -eu

ENVIRONMENT=$HOME/fedpbc/.venv # on a file system that all nodes share, or the same on each
DATA=$HOME/data/cifar10        # read on the first node only
OUT=$HOME/runs/$SLURM_JOB_NAME # written on the first node only

source "$ENVIRONMENT/bin/activate"
# Who does not know the token can neither join nor start anything.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(16))')
export RAY_USAGE_STATS_ENABLED=0
# Short and local: the names of sockets in it are long, and shared file systems are slow.
export RAY_TMPDIR=/tmp/ray-$SLURM_JOB_ID

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000)) # two jobs on one node must not meet
address=$(getent ahostsv4 "$first" | awk 'NR == 1 { print $1 }'):$port

# A job that was requeued, or that ran out of time and was submitted again, goes on where it was.
# The address is "auto", the cluster of this job: a later job has another one.
if [ -e "$OUT/config.toml" ]; then
    command=(fedpbc resume "$OUT")
else
    command=(fedpbc run --data cifar10 --data-dir "$DATA" --algorithm fedpbc --rounds 2000
        --engine ray --ray-address auto --out "$OUT")
fi
# Starts Ray on every node and the command on the first one; stops Ray when it ends.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" \
    ray symmetric-run --address "$address" --min-nodes "$SLURM_JOB_NUM_NODES" \
    --num-cpus="$SLURM_CPUS_PER_TASK" -- "${command[@]}"
