"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 08e3ad18574c330bb5836237f21228e251d653de88f581f4607112d2162aeed4
"""
