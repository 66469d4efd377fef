#!/bin/sh
# Prolog of Slurm's compute nodes: says which job has which GPU, one JSON file a job and device, for gpufleet.
#
# A prolog that fails drains the node and one that hangs holds the job up, so this one does neither: the work is done by
# a copy of the script that is given 10 seconds, what goes wrong is logged, and the exit status is 0. It needs a POSIX
# shell and coreutils, and runs no command of Slurm unless it is told to. Settings: README.md beside this file.

# slurmd gives a prolog no PATH; a shell's own default may lack the directories of the system.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C # one character is one byte, and files are listed in the order of their bytes
export PATH LC_ALL
umask 022

complain() {
  if command -v logger >/dev/null 2>&1; then
    timeout 2 logger -t gpufleet-prolog -p daemon.warning -- "job ${SLURM_JOB_ID-?}: $*" >/dev/null 2>&1 && return
  fi
  echo "gpufleet-prolog: job ${SLURM_JOB_ID-?}: $*" >&2
}

if [ "${1-}" != --inner ]; then
  timeout -k 2 10 /bin/sh "$0" --inner </dev/null
  status=$?
  case $status in
    0) ;;
    124 | 137) complain "gave up after 10 seconds; this job is not shown on its GPUs" ;;
    *) complain "ended with status $status; this job may not be shown on its GPUs" ;;
  esac
  exit 0
fi

config=/etc/gpufleet/slurm-prolog.conf
# shellcheck source=/dev/null
[ ! -r "$config" ] || . "$config"
directory=${GPUFLEET_SLURM_DIR:-/run/gpufleet/slurm}
procfs=${GPUFLEET_PROCFS:-/proc}
order=${GPUFLEET_GPU_ORDER:-auto}

is_number() {
  case ${1-} in
    '' | *[!0-9]* | ???????????*) return 1 ;;
  esac
}

# The text as the inside of a JSON string, at most 128 bytes of it. Users choose names of jobs and comments freely.
json() {
  json_rest=$(printf '%s' "$1" | head -c 128 | tr '\000-\037\177' ' ')
  json_done=
  while :; do
    case $json_rest in
      *[\\\"]*)
        json_head=${json_rest%%[\\\"]*}
        json_rest=${json_rest#"$json_head"}
        json_done=$json_done$json_head\\${json_rest%"${json_rest#?}"}
        json_rest=${json_rest#?}
        ;;
      *) break ;;
    esac
  done
  printf '%s' "$json_done$json_rest"
}

# Whether a line of a file of Slurm's, in small letters and without its comment, matches the pattern.
says() { # FILE PATTERN...
  [ -r "$1" ] || return 1
  says_lines=$(head -c 1048576 "$1" | tr '[:upper:]' '[:lower:]')
  shift
  while IFS= read -r says_line; do
    says_line=${says_line%%#*}
    for says_pattern in "$@"; do
      # shellcheck disable=SC2254  # it is a pattern
      case $says_line in
        $says_pattern) return 0 ;;
      esac
    done
  done <<EOF
$says_lines
EOF
  return 1
}

# Sets uuid and minor from the driver's file of one GPU; empty where it does not say. The UUID of a GPU that nobody has
# initialized yet is made of question marks.
read_gpu() { # FILE
  uuid='' minor=''
  while IFS= read -r gpu_line; do
    gpu_value=${gpu_line#*:}
    # The value is behind blanks and tabs.
    gpu_value=${gpu_value##*[[:blank:]]}
    case $gpu_line in
      'GPU UUID:'*)
        case $gpu_value in
          GPU-*[!0-9a-fA-F-]* | MIG-*) ;;
          GPU-?*) uuid=$gpu_value ;;
        esac
        ;;
      'Device Minor:'*) ! is_number "$gpu_value" || minor=$gpu_value ;;
    esac
  done <"$1"
}

# The device of a minor number: the N of /dev/nvidiaN.
device_of_minor() {
  for gpu_file in "$procfs"/driver/nvidia/gpus/*/information; do
    [ -r "$gpu_file" ] || continue
    read_gpu "$gpu_file"
    if [ "$minor" = "$1" ]; then
      printf '%s' "${uuid:-minor:$1}"
      return
    fi
  done
  printf 'minor:%s' "$1"
}

# The device of a number in the order of the PCI bus, which is NVML's order: the driver's directories are named by bus.
device_of_index() {
  gpu_left=$1
  for gpu_file in "$procfs"/driver/nvidia/gpus/*/information; do
    [ -r "$gpu_file" ] || continue
    if [ "$gpu_left" = 0 ]; then
      read_gpu "$gpu_file"
      if [ -n "$uuid" ]; then
        printf '%s' "$uuid"
      else
        printf '%s' "${minor:+minor:$minor}"
        [ -n "$minor" ] || printf 'index:%s' "$1"
      fi
      return
    fi
    gpu_left=$((gpu_left - 1))
  done
  printf 'index:%s' "$1"
}

# The device of a number in SLURM_JOB_GPUS, which counts the GPUs in Slurm's order of the node.
device_of_slurm() {
  case $order in
    minor) device_of_minor "$1" ;;
    pci) device_of_index "$1" ;;
    *)
      listed_left=$1
      for listed in $order; do
        if [ "$listed_left" = 0 ]; then
          case $listed in
            *[!0-9]*) printf '%s' "$listed" ;;
            *) device_of_minor "$listed" ;;
          esac
          return
        fi
        listed_left=$((listed_left - 1))
      done
      ;;
  esac
}

write() { # DEVICE
  # Slices of drivers before R470 are named with slashes.
  name=$1
  while :; do
    case $name in
      */*) name=${name%%/*}-${name#*/} ;;
      *:*) name=${name%%:*}-${name#*:} ;;
      *) break ;;
    esac
  done
  name=$name.$SLURM_JOB_ID.json
  temporary=$directory/.$name.$$
  {
    printf '{"version":1,"device":"%s","job":"%s"' "$(json "$1")" "$SLURM_JOB_ID" &&
      printf ',"user":"%s"' "$(json "${SLURM_JOB_USER:-${USER:-${SLURM_JOB_UID:-}}}")" &&
      printf ',"account":"%s"' "$(json "${SLURM_JOB_ACCOUNT:-}")" &&
      printf ',"partition":"%s"' "$(json "${SLURM_JOB_PARTITION:-}")" &&
      printf ',"name":"%s"' "$(json "$job_name")" &&
      printf ',"array_job":"%s","array_task":"%s"' "$(json "$array_job")" "$(json "$array_task")" &&
      printf ',"restart_count":"%s"' "$(json "${SLURM_JOB_RESTART_COUNT:-0}")" &&
      printf '%s,"shared":%s,"contained":%s,"started_at":%s}\n' "$shards" "$shared" "$contained" "$now"
  } >"$temporary" 2>/dev/null && mv -f -- "$temporary" "$directory/$name" 2>/dev/null && return
  rm -f -- "$temporary"
  return 1
}

if ! is_number "${SLURM_JOB_ID-}"; then
  complain "SLURM_JOB_ID is not set: this is a prolog of slurmd (Prolog= of slurm.conf)"
  exit 0
fi
numbers=${SLURM_JOB_GPUS:-${GPU_DEVICE_ORDINAL:-${CUDA_VISIBLE_DEVICES:-}}}
visible=${CUDA_VISIBLE_DEVICES:-}
[ -n "$numbers$visible" ] || exit 0

if [ "$order" = auto ]; then
  order=minor
  ! says "${SLURM_CONF:+${SLURM_CONF%/*}/gres.conf}" '*autodetect=*nvml*' '*autodetect=*nvidia*' || order=pci
fi
contained=false shared=false shards=''
! says "${SLURM_CONF:-}" '*prologflags=*contain*' '*prologflags=*x11*' '*prologflags=*runinjob*' || contained=true
! says "${SLURM_CONF:-}" '*grestypes=*shard*' '*grestypes=*mps*' || shared=true
! is_number "${SLURM_SHARDS_ON_NODE-}" || shards=",\"shards\":$((SLURM_SHARDS_ON_NODE))"
now=$(date +%s)
is_number "$now" || now=0

# A prolog of slurmd is not told these by the releases of today.
job_name=${SLURM_JOB_NAME:-} array_job=${SLURM_ARRAY_JOB_ID:-} array_task=${SLURM_ARRAY_TASK_ID:-}
if [ "${GPUFLEET_SCONTROL:-0}" = 1 ] && [ -z "$job_name" ]; then
  if shown=$(timeout -k 1 3 scontrol --local show job "$SLURM_JOB_ID" 2>/dev/null | head -n 1) && [ -n "$shown" ]; then
    # The name is the last of the line, so that whatever it holds can't be taken for anything else.
    job_name=${shown#*JobName=}
    for field in ${shown%%JobName=*}; do
      case $field in
        ArrayJobId=*) array_job=${field#*=} ;;
        ArrayTaskId=*) array_task=${field#*=} ;;
      esac
    done
  else
    complain "scontrol did not answer within 3 seconds; the job is shown without its name"
  fi
fi

set -f # lists are split, and nothing in them is a pattern
IFS=,
# shellcheck disable=SC2086  # split at commas
set -- $visible
IFS=,
devices=''
for number in $numbers; do
  # Slurm names slices, and only these, by their UUID; they stand where the number stands.
  case ${1-} in
    GPU-*[!0-9a-zA-Z/-]* | MIG-*[!0-9a-zA-Z/-]*) ;;
    GPU-?* | MIG-?*) number=$1 ;;
  esac
  [ $# = 0 ] || shift
  devices=$devices${devices:+,}$number
done
[ -n "$devices" ] || devices=$visible

failed=''
mkdir -p -- "$directory" 2>/dev/null
IFS=,
for device in $devices; do
  IFS=' '
  case $device in
    GPU-* | MIG-*) ;;
    *)
      set +f
      if is_number "$device"; then device=$(device_of_slurm "$((${device#"${device%%[!0]*}"} + 0))"); else device=''; fi
      set -f
      ;;
  esac
  if [ -z "$device" ]; then
    failed="$failed (a device of $numbers that GPUFLEET_GPU_ORDER does not name)"
  else
    write "$device" || failed="$failed $device"
  fi
done
[ -z "$failed" ] || complain "can't write to $directory, so this job is not shown on:$failed"
exit 0
