#compdef rlinf
# Completion of the command rlinf for zsh.

_rlinf() {
    local line text about
    local -a given whole unfinished
    given=("${(@)words[2,CURRENT-1]}" "$PREFIX")
    while IFS= read -r line; do
        text=${line%%$'\t'*}
        about=${line#"$text"}
        about=${about#$'\t'}
        text=${text//:/\\:}${about:+:$about}
        # These go on: a key has a value, a section has keys.
        if [[ ${line%%$'\t'*} == *[=./] ]]; then
            unfinished+=("$text")
        else
            whole+=("$text")
        fi
    done < <("${words[1]/#\~/$HOME}" __complete "${given[@]}" 2>/dev/null)
    if (( ! $#whole && ! $#unfinished )); then
        _files
        return
    fi
    (( $#whole )) && _describe -t values rlinf whole
    (( $#unfinished )) && _describe -t keys key unfinished -S ''
    return 0
}

if [[ ${funcstack[1]} == _rlinf ]]; then
    _rlinf "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
    compdef _rlinf rlinf
fi
