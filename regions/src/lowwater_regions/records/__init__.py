"""Generated from proto/lowwater/regions/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 0578da9776358440e30236ef788cb89da9e74ff7205d03500378979e04c9e313
"""
