"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 c96efc26927be067cbf31cf1e0cd390f3da21922344b25559363cc037e6938de
"""
