"""Trace files: requests that were really asked, in the order of the file.

A format is a generator of rows and one line in READERS. Readers stream: the text of a file is never held whole,
but for formats that are one JSON document. Times start at the first request; a bad line is an error that names
file and line, or is passed over and counted.
"""

from kvsim.workload.traces.options import Columns, Options
from kvsim.workload.traces.readers import READERS, Reader, read_rows, recognise
from kvsim.workload.traces.row import Row
from kvsim.workload.traces.trace import SkippedRows, Trace

__all__ = ["READERS", "Columns", "Options", "Reader", "Row", "SkippedRows", "Trace", "read_rows", "recognise"]
