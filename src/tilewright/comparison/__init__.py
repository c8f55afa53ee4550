"""`tilewright.compare`: a compiled model beside another account of what it should compute."""

from tilewright.comparison.report import DIFFERENT, Comparison, Row
from tilewright.comparison.run import compare, compare_subject
from tilewright.comparison.subject import Subject, open_subject

__all__ = ["DIFFERENT", "Comparison", "Row", "Subject", "compare", "compare_subject", "open_subject"]
