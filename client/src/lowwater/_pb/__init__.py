"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 e35ac62843a5f09d87430327b85d956eed4585340cc5f82226154f51edb479a4
"""
