"""``python -m lowwater_pipeline``: the same as ``lowwater-pipeline``."""

import sys

from lowwater_pipeline.command import main

sys.exit(main())
