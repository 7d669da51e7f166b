"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 bdfd6d26b7db160bca214da14d72e50dd6af86f3f1bb76288ad1939a94fdd109
"""
