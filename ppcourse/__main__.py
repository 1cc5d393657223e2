"""`python -m ppcourse …` is `ppcourse …`."""

import sys

from ppcourse.cli import main

if __name__ == "__main__":
    sys.exit(main())
