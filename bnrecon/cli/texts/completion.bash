_bnrecon() {
    local IFS=$'\n'
    COMPREPLY=($("${COMP_WORDS[0]}" completion bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -o default -F _bnrecon bnrecon
