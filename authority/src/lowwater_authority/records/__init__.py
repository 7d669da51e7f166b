"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 2281a659e03e6fbfb3ee074ae9df1046d083e847d13213275d7e9772be9b1322
"""
