"""What one target measured besides its verdict: one tagged struct per file."""

from __future__ import annotations

from compilewatch.records.details.export import ExportDetail
from compilewatch.records.details.neuron import NeuronDetail
from compilewatch.records.details.performance import Performance
from compilewatch.records.details.xla import XlaDetail

Details = ExportDetail | Performance | XlaDetail | NeuronDetail
