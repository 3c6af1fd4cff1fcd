"""`python -m bnrecon`."""

import sys

from bnrecon.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
