#!/bin/bash
# A benchmark on the nodes of one SLURM job: sbatch slurm.sh. Submit it again to go on after a time limit.
#SBATCH --job-name=dpaudit --nodes=4 --ntasks-per-node=1 --cpus-per-task=16 --time=08:00:00
set -euo pipefail
export RAY_USAGE_STATS_ENABLED=0 # Ray reports nothing to anybody
export RAY_AUTH_MODE=token # only this job's processes may use its cluster
RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
export RAY_AUTH_TOKEN
port=6379
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun --nodes=1 --ntasks=1 --nodelist="$head" \
    ray start --head --port="$port" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
until ray status --address="$head:$port" > /dev/null 2>&1; do sleep 2; done
if ((SLURM_JOB_NUM_NODES > 1)); then
    others=$((SLURM_JOB_NUM_NODES - 1))
    srun --nodes="$others" --ntasks="$others" --exclude="$head" \
        ray start --address="$head:$port" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
fi
dpaudit benchmark bench.toml --out bench --backend ray --address "$head:$port"
