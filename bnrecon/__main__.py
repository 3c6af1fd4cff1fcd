"""`python -m bnrecon`."""

from bnrecon.cli.main import main

if __name__ == "__main__":
    main()
