# Makes a command known as a login shell would; programs that were on the PATH stay the first.
if [ -z "${dscampaign_read-}" ] && ! type "$dscampaign_name" >/dev/null 2>&1; then
  dscampaign_read=1 dscampaign_path=$PATH dscampaign_options=$(set +o)
  set +eu
  if [ -r /etc/profile ]; then . /etc/profile; fi
  for dscampaign_file in ~/.bash_profile ~/.bash_login ~/.profile; do
    if [ -r "$dscampaign_file" ]; then . "$dscampaign_file"; break; fi
  done
  PATH=$dscampaign_path:$PATH
  eval "$dscampaign_options"
fi
if [ "$dscampaign_name $(type -t conda)" = "conda file" ]; then eval "$(conda shell.bash hook)"; fi
dscampaign_failed=
