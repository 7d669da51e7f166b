"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 6ecb91840ed03e2b19f8a4b8e5f8796fb9750e6467c6651f49ca77f42cc92382
"""
