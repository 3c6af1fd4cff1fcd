"""`python -m bnrecon.cli`."""

from bnrecon.cli.main import main

if __name__ == "__main__":
    main()
