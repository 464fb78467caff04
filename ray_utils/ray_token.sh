# Sourced by the scripts beside it: the token by which Ray lets nodes and programs in.

# Whether this machine has a token, where Ray looks for it.
has_token() {
  if [[ -n ${RAY_AUTH_TOKEN:-} ]]; then return 0; fi
  [[ -s ${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token} ]]
}
