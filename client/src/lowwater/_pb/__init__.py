"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 20be4d732d88053156d9cc5d214c14513b4da3adf36d40f93762554a61d56e3a
"""
