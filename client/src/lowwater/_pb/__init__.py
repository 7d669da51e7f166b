"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 8c8d3918fd624647d7a26041c5b0742057ed78d5604f95d0366aec02eb9243ee
"""
