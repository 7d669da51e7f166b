"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 91cd49e132d2dffec28462c25aeba7968fc3826eee2eab9664c0904d197f4148
"""
