"""``python -m lowwater_authority``: the command ``lowwater serve``."""

import sys

from lowwater_authority.commands.serve import main

sys.exit(main())
