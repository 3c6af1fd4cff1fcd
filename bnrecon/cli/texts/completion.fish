complete -c bnrecon -a '(bnrecon completion fish (commandline -cp | string collect) 2>/dev/null)'
