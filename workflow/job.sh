# . job.sh PYTHON: what the shell of each job needs; rules then run `revela STEP … | record LOG`, and
# `launch` for one process per GPU.
#
# A failing command fails its job although `tee` succeeds. A job imports this checkout's source in any
# environment. The shell and `tee` ignore signals that are sent to all processes of a job, so that a
# training can save its checkpoint and log it: Slurm kills a job once its shell has ended.
set -euo pipefail
trap : INT TERM USR1 HUP
export REVELA_PYTHON=$1
REVELA_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH=$REVELA_ROOT${PYTHONPATH:+:$PYTHONPATH}

# All below results/ is the workflow's own, also what an earlier version wrote there: its steps may
# replace it.
mkdir -p results && echo '*' > results/.revela

revela() { exec "$REVELA_PYTHON" -m revela "$@" 2>&1; }
launch() { exec bash "$REVELA_ROOT/workflow/launch.sh" "$@" 2>&1; }
record() {
    trap '' INT TERM USR1 HUP
    [ -z "${REVELA_QUIET:-}" ] || exec >/dev/null
    exec tee "$1"
}
