#!/usr/bin/env bash
# launch.sh NODES MODULE ARGUMENTS…: `python -m MODULE ARGUMENTS`, one process for each GPU.
#
# The GPUs are those that this job may see: CUDA_VISIBLE_DEVICES, which Slurm sets, else all there
# are. OMP_NUM_THREADS, the CPUs of the job on a node, are shared out among its processes; Snakemake
# gives MKL_NUM_THREADS all of them.
set -euo pipefail
nodes=$1
shift
python=${REVELA_PYTHON:-python}
cpus=${OMP_NUM_THREADS:-1}
if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
    IFS=, read -ra devices <<<"$CUDA_VISIBLE_DEVICES"
    gpus=${#devices[@]}
else
    gpus=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU' || true) # not its MIG instances
fi
processes=$((gpus > 1 ? gpus : 1))
export OMP_NUM_THREADS=$((cpus > processes ? cpus / processes : 1))
unset MKL_NUM_THREADS

torchrun=("$python" -m revela.training.launch --nproc-per-node="$processes")
if [ "$nodes" -gt 1 ]; then
    # Snakemake runs on the first node and hides from us what Slurm told it about the job.
    exec srun --kill-on-bad-exit=1 --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 \
        --cpus-per-task="$cpus" \
        "${torchrun[@]}" --nnodes="$nodes" --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d \
        --rdzv-endpoint="$(hostname):$((20000 + SLURM_JOB_ID % 10000))" -m "$@"
elif [ "$processes" -gt 1 ]; then
    exec "${torchrun[@]}" --standalone -m "$@"
else
    exec "$python" -m "$@"
fi
