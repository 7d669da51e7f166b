"""``python -m lowwater_page``: the same as ``lowwater-page``."""

import sys

from lowwater_page.process import main

sys.exit(main())
