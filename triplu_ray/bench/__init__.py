"""`triplu-ray bench`: how fast training is on this machine."""

from triplu_ray.bench.measure import run_bench
from triplu_ray.bench.report import bench_report, write_bench
from triplu_ray.bench.subjects import Subject, papers_models
from triplu_ray.bench.variants import run_variants, variants_report

__all__ = [
    "Subject",
    "bench_report",
    "papers_models",
    "run_bench",
    "run_variants",
    "variants_report",
    "write_bench",
]
