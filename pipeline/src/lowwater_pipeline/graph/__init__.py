"""Pipelines of computations: declared once, drawn and run.

docs/concepts/computations.md has the guarantees.
"""

from lowwater_pipeline.graph.pipeline import Pipeline, PipelineError
from lowwater_pipeline.graph.places import Folder, Frame, Table, Topic

__all__ = ["Folder", "Frame", "Pipeline", "PipelineError", "Table", "Topic"]
