"""``python -m lowwater_authority``: the same as ``lowwater serve``."""

import sys

from lowwater_authority.serve_command import main

sys.exit(main())
