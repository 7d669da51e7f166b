"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 7d3df05cd76d2699666733bc170c506be59dac1466ad381b3070deb376939179
"""
