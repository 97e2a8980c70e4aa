"""From tables to people: tables, figures and one page, from an OUT folder's files alone."""

from raybias.report.calibration import calibration
from raybias.report.compare import Comparison, compare
from raybias.report.design import design_text
from raybias.report.files import design_of_files, measure_files, rules_of_files
from raybias.report.outs import as_reported, read_notes, restated
from raybias.report.page import write_report
from raybias.report.sentences import by_scope, verdict
from raybias.report.tables import write_tables
from raybias.study_record import read_record as load_record

__all__ = [
    "Comparison",
    "as_reported",
    "by_scope",
    "calibration",
    "compare",
    "design_of_files",
    "design_text",
    "load_record",
    "measure_files",
    "read_notes",
    "restated",
    "rules_of_files",
    "verdict",
    "write_report",
    "write_tables",
]
