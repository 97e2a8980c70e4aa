"""From tables to people: tables, figures and one page, from an OUT folder's files alone."""

from raybias.report.calibration import calibration
from raybias.report.compare import Comparison, compare
from raybias.report.design import ASSUMED, design_sentences, designs_table
from raybias.report.findings import by_scope, by_the_rules, headline
from raybias.report.from_files import design_of_files, measure_files, rules_of_files
from raybias.report.load_results import add_corpus, as_reported, restated
from raybias.report.page import write_report
from raybias.report.tables import read_notes, write_frame, write_tables
from raybias.report.verdict import verdict
from raybias.study_record import read_record as load_record

__all__ = [
    "ASSUMED",
    "Comparison",
    "add_corpus",
    "as_reported",
    "by_scope",
    "by_the_rules",
    "calibration",
    "compare",
    "design_of_files",
    "design_sentences",
    "designs_table",
    "headline",
    "load_record",
    "measure_files",
    "read_notes",
    "restated",
    "rules_of_files",
    "verdict",
    "write_frame",
    "write_report",
    "write_tables",
]
