"""``python -m lowwater.cli``."""

import sys

from lowwater.cli import main

if __name__ == "__main__":
    sys.exit(main())
