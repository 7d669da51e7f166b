"""``python -m lowwater_authority``: the same as ``lowwater serve``."""

import sys

from lowwater_authority.commands.serve import main

sys.exit(main())
