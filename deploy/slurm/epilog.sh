#!/bin/sh
# Epilog of Slurm's compute nodes: removes what prolog.sh wrote for the job that has ended, and nothing of other jobs.
#
# An epilog that fails drains the node, so this one does not: it is given 10 seconds, what goes wrong is logged, and the
# exit status is 0. gpufleet notices most jobs that are over by itself, and so bears with a file that stays.

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
export PATH LC_ALL

complain() {
  if command -v logger >/dev/null 2>&1; then
    timeout 2 logger -t gpufleet-epilog -p daemon.warning -- "job ${SLURM_JOB_ID-?}: $*" >/dev/null 2>&1 && return
  fi
  echo "gpufleet-epilog: job ${SLURM_JOB_ID-?}: $*" >&2
}

if [ "${1-}" != --inner ]; then
  timeout -k 2 10 /bin/sh "$0" --inner </dev/null
  status=$?
  case $status in
    0) ;;
    124 | 137) complain "gave up after 10 seconds; this job may still be shown on its GPUs" ;;
    *) complain "ended with status $status; this job may still be shown on its GPUs" ;;
  esac
  exit 0
fi

config=/etc/gpufleet/slurm-prolog.conf
# shellcheck source=/dev/null
[ ! -r "$config" ] || . "$config"
directory=${GPUFLEET_SLURM_DIR:-/run/gpufleet/slurm}

case ${SLURM_JOB_ID-} in
  '' | *[!0-9]*)
    complain "SLURM_JOB_ID is not set: this is an epilog of slurmd (Epilog= of slurm.conf)"
    exit 0
    ;;
esac

# Also what a prolog left behind that was ended between its two steps. A pattern that matches nothing stays as it is,
# and rm -f is silent about what is not there.
rm -f -- "$directory"/*."$SLURM_JOB_ID".json "$directory"/.*."$SLURM_JOB_ID".json.* 2>/dev/null ||
  complain "can't remove from $directory, so this job may still be shown on its GPUs"
exit 0
