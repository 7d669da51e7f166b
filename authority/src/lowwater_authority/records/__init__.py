"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 d3d001d689ebf034d34af03f25cfebeed1cfcbf0543d3cdbe4a82f565a0053b9
"""
