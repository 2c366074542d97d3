"""Holds a GPU against the CPU and measures it: `python -m triplu_ray.gpu_check`, without Ray.

The agreements take about a minute, always run, and decide the exit code; the main setting and the
throughput take what is left of `--minutes`, and what no longer fits is skipped and named.
`--device cpu --quick` is the dress rehearsal: the same functions on tiny models,
where nothing is compiled and a "graph" is the eager step.
"""
