"""the paper's running-time table: FLOPs, norm layers and whole steps against BN

Per ResNet-18 shape and summed over its 20 norm layers: forward and backward, ratio to nn.BatchNorm2d, in both memory
layouts; whole training steps of ER-ACE and DER++ per norm, ratio to the same step with BN. Ratios are medians of
paired, interleaved repetitions with a 95 % bootstrap interval.
"""

from __future__ import annotations

from scripts.bench import workloads
from scripts.bench.timing import against, interleaved, shown
from utils.tables import aligned

CANDIDATES = {
    "bn": ("bn", {}),
    "gn": ("gn", {}),
    "cn": ("cn", {}),
    "adab2n reference": ("adab2n", {"norm_impl": "reference"}),
    "adab2n": ("adab2n", {"norm_impl": "auto"}),
}
PUBLISHED_FLOPS = {"bn": 49.20, "gn": 49.18, "cn": 86.09, "adab2n": 49.32}  # millions per step
PUBLISHED_SECONDS = {
    "plain": {"bn": 430, "gn": 440, "cn": 535, "adab2n": 489},
    "cuDNN": {"bn": 324, "gn": 322, "cn": 376},
}
# Elements read and written per activation element: (forward reads, writes, backward reads, writes).
TRAFFIC = {"nn.BatchNorm2d": (2, 1, 4, 1), "adab2n, compiled": (2, 1, 4, 1), "adab2n, Triton": (2, 1, 4, 1)}


def add_arguments(parser) -> None:
    parser.add_argument("--batch", type=int, default=20, help="samples in a forward of the layer table (default 20)")
    parser.add_argument("--width", type=int, default=64, help="--num_filters of the network (default 64)")
    parser.add_argument("--layouts", nargs="+", default=list(workloads.LAYOUTS), choices=list(workloads.LAYOUTS))
    parser.add_argument("--only", nargs="+", default=["flops", "layers", "steps"], choices=["flops", "layers", "steps"])


def run(arguments) -> dict:
    numbers = {}
    if "flops" in arguments.only:
        numbers["flops"] = flops_table()
    if "layers" in arguments.only:
        numbers["layers"] = {layout: layer_table(arguments, layout) for layout in arguments.layouts}
    if "steps" in arguments.only:
        numbers["steps"] = {layout: step_table(arguments, layout) for layout in arguments.layouts}
    return numbers


def flops_per_step(norm: str, batch: int = 10, width: int = 64, groups: int = 32) -> int:
    """FLOPs of the 20 norm layers of a 32x32 ResNet-18 in one step, counted as the paper does."""
    total = 0
    for channels, side in workloads.resnet18_shapes(width):
        elements = batch * channels * side * side
        batch_norm = 8 * elements + 10 * channels
        total += {
            "bn": batch_norm,
            "adab2n": 8 * elements + 2 * batch * channels + 14 * channels,
            "gn": 8 * elements + 4 * batch * groups,
            "cn": 6 * elements + 4 * batch * groups + batch_norm,
        }[norm]
    return total


def flops_table() -> dict:
    flops = {norm: flops_per_step(norm) for norm in PUBLISHED_FLOPS}
    rows = [["FLOPs per step, millions", *flops]]
    rows.append(["ours", *(f"{value / 1e6:.2f}" for value in flops.values())])
    rows.append(["published", *(f"{PUBLISHED_FLOPS[norm]:.2f}" for norm in flops)])
    for name, seconds in PUBLISHED_SECONDS.items():
        rows.append([f"published run, {name}, s", *(str(seconds.get(norm, "-")) for norm in flops)])
    print(aligned(rows), end="\n\n")
    rows = [["bytes per float32 activation", "forward read", "written", "backward read", "written"]]
    rows += [[name, *(str(4 * count) for count in counts)] for name, counts in TRAFFIC.items()]
    print(aligned(rows), end="\n\n")
    return flops


def layer_table(arguments, layout: str) -> dict:
    """Forward and backward of the layers of one shape, and of all 20."""
    all_shapes = workloads.resnet18_shapes(arguments.width)
    by_shape = {f"{c} x {s} x {s}": [(c, s)] * workloads.LAYERS_PER_STAGE for c, s in dict.fromkeys(all_shapes)}
    results = {}
    for title, shapes in {**by_shape, "all 20": all_shapes}.items():
        candidates = {
            name: workloads.norm_stack(norm, shapes, arguments.batch, layout, **options)
            for name, (norm, options) in CANDIDATES.items()
        }
        results[title] = against(interleaved(candidates, arguments.repetitions), "bn")
    rows = [[f"norm layers, {layout}, batch {arguments.batch}: bn ms, then ratio", *CANDIDATES]]
    for title, result in results.items():
        rows.append([title, f"{result['bn']['ms']:.2f} ms", *(shown(result[name]) for name in list(CANDIDATES)[1:])])
    print(aligned(rows), end="\n\n")
    return results


def step_table(arguments, layout: str) -> dict:
    """Whole steps, all norms under the same joint forward."""
    results = {}
    rows = [[f"whole step, {layout}, width {arguments.width}: bn ms, then ratio", *CANDIDATES]]
    for model in ("er_ace", "derpp"):
        candidates = {}
        for name, (norm, options) in CANDIDATES.items():
            own = options if norm == "adab2n" else {}
            training = workloads.training_in_second_task(
                model=model, norm=norm, num_filters=arguments.width, replay_forward="joint",
                channels_last="yes" if layout == "channels-last" else "no", **own,
            )  # fmt: skip
            candidates[name] = workloads.training_step(training)
        results[model] = against(interleaved(candidates, arguments.repetitions), "bn")
        cells = (shown(results[model][name]) for name in list(CANDIDATES)[1:])
        rows.append([model, f"{results[model]['bn']['ms']:.1f} ms", *cells])
    print(aligned(rows), end="\n\n")
    return results
