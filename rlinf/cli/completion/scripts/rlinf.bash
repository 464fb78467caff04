# Completion of the command rlinf for bash.

_rlinf_complete() {
    local line=${COMP_LINE:0:COMP_POINT} breaks=${COMP_WORDBREAKS//[^=:]/}
    local words=() word head="" candidate
    read -ra words <<<"$line"
    if [[ $line == *[[:space:]] ]]; then
        words+=("")
    fi
    word=${words[-1]}
    # Bash ends words at = and : and replaces only what comes after the last of them.
    if [[ -n $breaks ]]; then
        head=${word%"${word##*[$breaks]}"}
    fi
    COMPREPLY=()
    while IFS=$'\t' read -r candidate _; do
        COMPREPLY+=("${candidate#"$head"}")
    done < <("${words[0]/#\~/$HOME}" __complete "${words[@]:1}" 2>/dev/null)
    # These go on: a key has a value, a section has keys.
    if ((${#COMPREPLY[@]} == 1)) && [[ ${COMPREPLY[0]} == *[=./] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}

# Where nothing is offered, bash completes files.
complete -o bashdefault -o default -F _rlinf_complete rlinf
