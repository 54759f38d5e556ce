# Exports the Python that the lines of `setup` choose.
for dscampaign_python in "$(command -v python)" "$(command -v python3)"; do
  case "$dscampaign_before" in
    *":$dscampaign_python:"*) ;;
    *) if [ -x "$dscampaign_python" ]; then export {{variable}}="$dscampaign_python"; break; fi ;;
  esac
done 2>/dev/null
