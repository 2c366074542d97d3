"""The width at which a layer is as large as the baseline's."""

from triplu_ray.errors import UserError
from triplu_ray.ffn import FeedForwardConfig


def matched_width(
    ffn: FeedForwardConfig,
    baseline: FeedForwardConfig,
    baseline_hidden: int,
    d_model: int,
    where: str = "",
) -> int:
    """The width whose parameters come nearest the baseline's; of two equally near, the larger.

    All else being equal between the two models, a layer's parameters decide.
    """
    wanted = baseline.num_params(d_model, baseline_hidden)
    width = 1
    while ffn.num_params(d_model, 2 * width) <= wanted:
        width *= 2
    step = width
    while step:
        if ffn.num_params(d_model, width + step) <= wanted:
            width += step
        step //= 2
    below, above = (abs(ffn.num_params(d_model, w) - wanted) for w in (width, width + 1))
    if ffn.num_params(d_model, 1) > 2 * wanted:
        raise UserError(f"{where}: hidden: no width of {ffn.label} is near the baseline's size")
    return width if below < above else width + 1
