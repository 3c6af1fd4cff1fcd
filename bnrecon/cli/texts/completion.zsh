_bnrecon() {
    local choice
    local -a choices=(${(f)"$(${words[1]} completion zsh "${(j: :)words[1,CURRENT]}" 2>/dev/null)"})
    for choice in $choices; do
        if [[ $choice == *= ]]; then compadd -S '' -- $choice; else compadd -- $choice; fi
    done
    (( $#choices )) || { compset -P '*='; _files; }
}
compdef _bnrecon bnrecon
