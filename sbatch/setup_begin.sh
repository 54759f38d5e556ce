# Records the line of `setup` that fails. All parts are without error output: `set -x` shows the lines alone.
dscampaign_note() {
  local status=$?
  [ -z "${dscampaign_line:-}" ] || (
    umask 077
    printf '%s%d, "host": "%s"}\n' "$dscampaign_line" "$status" "${SLURMD_NODENAME:-$HOSTNAME}" >"$dscampaign_record"
  )
}
dscampaign_check() {
  local status=$?
  [ "$status" = 0 ] || [ -z "$dscampaign_failed" ] || exit "$status"
  dscampaign_failed= dscampaign_line=
}
dscampaign_failed=
trap '{ dscampaign_note; } 2>/dev/null' EXIT
trap '{ dscampaign_failed=1; } 2>/dev/null' ERR
