"""``python -m lowwater_authority.web``: the status page as a process of its own."""

import sys

from lowwater_authority.web.process import main

sys.exit(main())
