#!/usr/bin/env bash
# Sees to it that what the tests need is installed: Slurm, munge, MariaDB (tests/support/slurm_cluster.py) and Charliecloud
# (tests/support/image.py), PostgreSQL and pgbouncer (tests/support/postgres.py, tests/support/pgbouncer.py), a browser
# (tests/support/browser.py), a compiler (torch.compile, operators of DeepSpeed) and libaio's headers
# (tests/integration/trainer/test_nvme.py).
#
# As root on Debian or Ubuntu it installs what is missing. Elsewhere it says what to install and fails, unless every
# missing group is named: SKIP="browser cluster postgres nvme training". Tests are never left out silently.
set -euo pipefail

declare -A packages=(
  [browser]="chromium"
  [cluster]="slurm-wlm slurmdbd munge mariadb-server charliecloud buildah python3"
  [postgres]="postgresql pgbouncer"
  [nvme]="libaio-dev"
  [training]="g++"
)

has() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ]; }

installed() {
  case $1 in
    browser) has chromium || has chromium-browser || has google-chrome || has chrome ;;
    cluster)
      for program in slurmctld slurmd slurmdbd munged mariadbd ch-run buildah; do has "$program" || return 1; done
      [ "$(id -u)" = 0 ]
      ;;
    nvme) [ -e /usr/include/libaio.h ] ;;
    training) has c++ ;;
    postgres) has pgbouncer && { compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null || has initdb; } ;;
  esac
}

install() {
  # The servers that the packages would start are of no use here: tests start their own.
  export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
  apt-get update -q
  apt-get install -q -y --no-install-recommends "$@"
}

missing=()
for group in browser cluster nvme postgres training; do
  [[ " ${SKIP:-} " == *" $group "* ]] || installed "$group" || missing+=("$group")
done
[ "${#missing[@]}" -gt 0 ] || exit 0

wanted=()
for group in "${missing[@]}"; do read -ra names <<<"${packages[$group]}" && wanted+=("${names[@]}"); done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing what the tests need: ${wanted[*]}"
  install "${wanted[@]}"
  exit 0
fi

echo "These tests cannot run here: ${missing[*]}" >&2
echo "They need (Debian package names): ${wanted[*]}" >&2
[[ " ${missing[*]} " != *" cluster "* ]] || echo "The private Slurm cluster also needs root." >&2
echo "Install them, or leave those tests out by name: make test SKIP=\"${missing[*]}\"" >&2
exit 1
