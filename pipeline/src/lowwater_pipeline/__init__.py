"""What a robust pipeline needs around low watermarks.

``lowwater-pipeline --help`` tells what there is; importing this starts nothing.
"""
