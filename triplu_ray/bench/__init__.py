"""`triplu-ray bench`: how fast training is on this machine."""

from triplu_ray.bench.measure import run_bench
from triplu_ray.bench.report import bench_report, write_bench
from triplu_ray.bench.subjects import Subject, papers_models

__all__ = ["Subject", "bench_report", "papers_models", "run_bench", "write_bench"]
