# Completion of the command rlinf for fish.

function __rlinf_complete
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    set -l found (eval $words[1] __complete (string escape -- $words[2..-1] "$word") 2>/dev/null)
    if test (count $found) -eq 0
        __fish_complete_path "$word"
    else
        printf '%s\n' $found
    end
end

complete -c rlinf -f -a '(__rlinf_complete)'
