"""The results of each target and the first that fails; the cost of compiling and its outliers."""

from dashboards import frame, panels
from dashboards import queries as q
from dashboards.overview import share_over_time
from dashboards.queries import Json

RESULTS, VERDICTS = (q.of_mode("compilewatch_results", *m) for m in ((), (q.OF_VERDICTS,)))
STAGES = ("compilewatch_neuron_stage_duration_seconds", "stage", "{{stage}} {{target}}")
GRAPHS = ("compilewatch_neuron_graphs", "reached", "{{reached}} {{target}}")
COMPILED = "pass|graph_break|mismatch"
ON_NEURON = 'target=~"neuron.*"'
LOOK_BACK = "14d"
"""How far the last good state of compilations may be back; the alert looks back as far."""

RAN = 'status=~"pass|graph_break|mismatch|error|timeout|oom|crashed"'


def _now() -> list[Json]:
    by = "target, mode, status"
    named = f'label_join(sum by ({by}) ({RESULTS}), "where", " ", "target", "mode")'
    # About a run of several targets: it has no target label.
    layers = q.of_run("compilewatch_first_failing_layer", 'mode=~"$mode"')
    return frame.line(
        10,
        panels.stacks(
            "Results by target",
            "Results of the newest run by status. Results without a verdict are grey.",
            named,
            row="where",
            column="status",
        ),
        panels.bars(
            "First target that fails",
            "Models by the first of eager, dynamo, export, numerics, inductor, xla, neuron that "
            "fails. Zero: the target ran and is never the first.",
            q.now(f"sort_desc(sum by (layer, mode) ({layers}))", "{{layer}} {{mode}}"),
        ),
        widths=(14, 10),
    )


def _look_up() -> list[Json]:
    by = "source, target, mode"
    share: Json = {"unit": "percentunit", "decimals": 1}
    share["mappings"] = [panels.NEARLY_ALL, *panels.missing("–")]
    operators = "compilewatch_operators"
    captured = q.share(q.of_mode(operators, 'where="captured"'), q.of_mode(operators), by)
    return frame.line(
        8,
        panels.table(
            "Shares by target",
            "Captured: operators that ran inside graphs, of all of one forward call of each model. "
            "Without breaks: passes divided by verdicts; by downloads, a model counts as much "
            "as it is downloaded. –: not counted, or downloads unknown.",
            {
                "Captured": captured,
                "Without breaks": q.share_of_models(by),
                "By downloads": q.share_of_downloads(by),
            },
            labels=("source", "target", "mode"),
            looks={
                "target": {
                    "links": [frame.to_dashboard(frame.COST, "Cost of this target", "target")]
                },
                "Captured": share,
                "Without breaks": share,
                "By downloads": share,
            },
        ),
    )


def _families() -> Json:
    def of(*matchers: str) -> str:
        return q.of_mode("compilewatch_family_results", 'family=~"$family"', *matchers)

    by = "family, target, mode"
    passed = q.share(of(q.PASSED), of(RAN, q.OF_VERDICTS), by)
    return panels.matrix(
        "Families by target",
        "Passes divided by results that ran. Families with the lowest share come first.",
        f'sort(label_join({passed}, "column", " ", "target", "mode"))',
        row="family",
        column="column",
        link=frame.to_dashboard(frame.OVERVIEW, "Models of this family", "family"),
        unit="percentunit",
        steps=[(None, panels.RED), (0.5, panels.ORANGE), (1, panels.GREEN)],
    )


def _forecasts() -> list[Json]:
    """Forecasts beside a device's verdicts on the same models, and what to ask AWS for first."""
    same = "model, mode, source"

    def of(status: str, *matchers: str) -> str:
        asked = ('mode=~"$mode"', f'status=~"{status}"', *matchers)
        return f"group by ({same}) ({q.of_run('compilewatch_model_status', *asked)})"

    def count(status: str, forecast: str) -> str:
        verdict = of(status, 'phase=~"compile|compare|done"', ON_NEURON, q.OF_VERDICTS)
        return f"count by (forecast) ({verdict} * on ({same}) group_left (forecast) ({forecast}))"

    fails = f'label_replace({of("forecast_fail")}, "forecast", "does not lower", "", "")'
    lowers = f'label_replace({of("forecast_pass")}, "forecast", "lowers", "", "")'
    both = f"{fails} or {lowers} unless on ({same}) {fails}"
    every = count(f"{COMPILED}|error", both)
    right = f"({count(COMPILED, lowers)} or {count('error', fails)} or 0 * {every}) / {every}"
    models, downloads = (
        f"sum by (operator, target) (max by (source, operator, target) ({q.of_mode(metric)}))"
        for metric in ("compilewatch_operator_models", "compilewatch_operator_downloads")
    )
    ran = f"group({q.of_mode('compilewatch_results', ON_NEURON)})"
    return frame.line(
        8,
        panels.table(
            "Forecast against verdict",
            "Models with a forecast and a verdict of a Neuron device. Right: what lowers compiles "
            "there, and what does not lower ends in an error.",
            {"compiles": count(COMPILED, both), "error": count("error", both), "right": right},
            labels=("forecast",),
            looks={"right": {"unit": "percentunit"}},
        ),
        panels.table(
            "Operators without a lowering",
            "What to ask AWS for first: models with an operator that the compiler for Neuron does "
            "not lower, and their downloads. Of a forecast, this is not a verdict.",
            {
                "models": q.or_say(f"topk(20, {models})", ran, operator="none"),
                "downloads": q.millions(downloads),
            },
            labels=("operator", "target"),
            sort="models",
            looks={"downloads": {"unit": q.MILLIONS}},
        ),
    )


def _shapes() -> list[Json]:
    """What the ten calls of the standard trace compile; only of runs of `sweep --shapes`."""
    chosen = 'family=~"$family"'
    by = "model, target, mode"
    compiled = q.of_mode("compilewatch_compilations", chosen)
    called, dynamic = (
        f"max by ({by}) ({q.of_mode('compilewatch_compilations', chosen, matcher)})"
        for matcher in ('dynamic="default"', 'dynamic="true"')
    )
    rise = f"({compiled} - min_over_time({compiled}[{LOOK_BACK}]))"
    risen = f"max by ({by}) ({rise} > 0)"
    most = f"topk(20, {called})"
    limit, limit_dynamic = (
        f"sum({q.of_mode('compilewatch_recompile_limit_models', matcher)})"
        for matcher in ('dynamic="default"', 'dynamic="true"')
    )
    return frame.line(
        8,
        panels.tiles(
            "Compilations for ten sizes",
            "Models that compile more often than at some time in the last 14 days, and models at "
            "the limit of recompilations, whose functions run in eager mode from then on. No "
            "data: no run of sweep --shapes.",
            q.now(f"count({risen}) or 0 * group({compiled})", "▲ more often"),
            q.now(limit, "at the limit"),
            q.now(limit_dynamic, "at the limit, dynamic"),
            mappings=[panels.value({"0": ("0", panels.GREY)})],
            steps=[(None, "text"), (1, "red")],
        ),
        panels.table(
            "Most compilations",
            "The 20 models that compile most often for the ten calls of the standard trace, as "
            "users compile by default and with dynamic=True.",
            {"as called": most, "dynamic": f"{dynamic} and on ({by}) {most}"},
            labels=("model", "target", "mode"),
            sort="as called",
            looks={"model": frame.cell("model")},
        ),
        panels.table(
            "Compile more often",
            "By how much the compilations are above the fewest of the last 14 days: as called or "
            "with dynamic=True, whichever rose more.",
            {"more": q.or_say(f"sort_desc({risen})", f"group({compiled})", model="none")},
            labels=("model", "target", "mode"),
            sort="more",
            looks={"model": frame.cell("model")},
        ),
        panels.trend(
            "Compilations over time",
            "Of all models together, for the ten calls of the standard trace.",
            q.ever(
                f"sum by (target, mode, dynamic) ({compiled})", "{{target}} {{mode}} {{dynamic}}"
            ),
        ),
        widths=(4, 7, 6, 7),
    )


def _neuron() -> list[Json]:
    def per(metric: str, by: str) -> str:
        return f"sort_desc(sum by ({by}) ({q.of_mode(metric)}))"

    classes = f"count by (error_class) ({q.of_mode('compilewatch_neuron_failure')})"
    ran = f"group({q.of_mode('compilewatch_results', ON_NEURON)})"
    failures = q.or_say(classes, ran, error_class="none")
    fallbacks = per("compilewatch_fallback_operator_models", "operator")
    return frame.line(
        8,
        panels.bars(
            "Neuron failures by class",
            "Models for which neuronx-cc produced no executable.",
            q.now(f"sort_desc({failures})", "{{error_class}}"),
            color=panels.fixed(panels.RED),
        ),
        panels.bars(
            "Operators that ran on the CPU",
            "Models of which TorchNeuron ran an operator on the CPU.",
            q.now(q.or_say(fallbacks, ran, operator="none"), "{{operator}}"),
        ),
        *(
            panels.bars(title, about, q.now(per(metric, f"{by}, target"), legend), unit=unit)
            for title, about, metric, by, legend, unit in (
                ("Time by stage", "Of the compiler, over all graphs.", *STAGES, q.SECONDS),
                ("Graphs", "By how far they came: NEFF, StableHLO or none.", *GRAPHS, "none"),
            )
        ),
    )


def targets() -> Json:
    return frame.dashboard(
        frame.TARGETS,
        "Results by target and status, the first target that fails, and families by target.",
        [
            _now(),
            frame.line(
                9,
                share_over_time(),
                panels.trend(
                    "Results over time",
                    "Results of the chosen targets and modes by status, without forecasts.",
                    q.ever(f"sum by (status) ({VERDICTS})", "{{status}}"),
                    drawn="bars",
                ),
            ),
            _look_up(),
            frame.line(14, _families()),
            frame.row("Compilations for ten sizes", _shapes()),
            frame.row("Forecasts for Neuron", _forecasts()),
            frame.row("Compilers for Neuron", _neuron()),
        ],
        variables=[*frame.shared(), frame.family()],
    )


COLD = q.of_mode("compilewatch_compile_duration_seconds", 'cache="cold"')
WARM = q.of_mode("compilewatch_compile_duration_seconds", 'cache="warm"')
MEMORY = q.of_mode("compilewatch_peak_memory_bytes")
SPEEDUP = q.of_mode("compilewatch_speedup_ratio")
SPENT = "compilewatch_phase_duration_seconds"
COMPILING = q.of_mode(SPENT, 'phase="compile"')
BY = "target, mode"
LEGEND = "{{target}} {{mode}}"
OUTLIER_FACTOR = 3


def _median(selected: str, quantile: float = 0.5) -> str:
    return f"quantile by ({BY}) ({quantile}, {selected})"


def _usual() -> list[Json]:
    phases = q.of_mode(SPENT, 'phase!="done"')
    return frame.line(
        9,
        panels.bars(
            "Median compile time",
            "Over models, with empty caches, by target and mode.",
            q.now(f"sort_desc({_median(COLD)})", LEGEND),
            unit=q.SECONDS,
            links=frame.series("target"),
        ),
        panels.trend(
            "Compile time of a verdict",
            "Time in the phase compile divided by the number of verdicts: an average that does not "
            "depend on the number of models.",
            q.ever(
                f"sum by ({BY}) ({COMPILING}) "
                f"/ (sum by ({BY}) ({q.of_mode('compilewatch_verdicts')}) > 0)",
                LEGEND,
            ),
            unit=q.SECONDS,
        ),
        panels.trend(
            "Time by phase",
            "Minutes that all models together spent in each phase, one process each: reused "
            "results count the time of their original run.",
            q.ever(f"sum by (phase) ({phases}) / 60", "{{phase}}"),
            unit=q.MINUTES,
            drawn="bars",
        ),
    )


def _extreme(title: str, about: str, expr: str, unit: str) -> Json:
    return panels.bars(
        title,
        about,
        q.now(expr, "{{model}} {{target}} {{mode}}"),
        unit=unit,
        links=frame.series("model"),
    )


def _top(selected: str) -> str:
    return f"sort_desc(topk(15, max by (model, {BY}) ({selected})))"


def cost() -> Json:
    # Against the median of the same target and mode, where that has one.
    far = (
        f"topk(15, max by (model, {BY}) ({COLD}) / on ({BY}) group_left () "
        f"({_median(COLD)} > 0)) > {OUTLIER_FACTOR}"
    )
    outliers = f"sort_desc({q.or_say(far, f'group({COLD})', model='none')})"
    return frame.dashboard(
        frame.COST,
        "Compile times, memory and speed-up: usual values, trends, slowest models and outliers.",
        [
            _usual(),
            frame.line(
                11,
                _extreme(
                    "Slowest to compile",
                    "The 15 models with the longest compilation from empty caches.",
                    _top(COLD),
                    q.SECONDS,
                ),
                _extreme(
                    "Most memory",
                    "The 15 models whose process used the most resident memory.",
                    _top(MEMORY),
                    "bytes",
                ),
            ),
            frame.line(
                11,
                _extreme(
                    "Outliers",
                    f"Compile time in multiples of the target's median, from {OUTLIER_FACTOR} on.",
                    outliers,
                    "none",
                ),
                panels.table(
                    "Usual cost by target",
                    "Over models: the median and the 95th percentile (p95). Cold and warm: "
                    "compile time with empty and filled caches. Speed-up is eager latency divided "
                    "by that of compiled code. –: the target does not measure it.",
                    {
                        "Cold": _median(COLD),
                        "Cold p95": _median(COLD, 0.95),
                        "Warm": _median(WARM),
                        "Memory": _median(MEMORY),
                        "Memory p95": _median(MEMORY, 0.95),
                        "Speed-up": _median(SPEEDUP),
                    },
                    labels=("target", "mode"),
                    sort="Cold",
                    looks={
                        "target": frame.cell("target"),
                        **{name: {"unit": q.SECONDS} for name in ("Cold", "Cold p95")},
                        "Warm": {"unit": q.SECONDS},
                        **{name: {"unit": "bytes"} for name in ("Memory", "Memory p95")},
                    },
                ),
            ),
            frame.row(
                "Speed-up",
                frame.line(
                    11,
                    _extreme(
                        "Least speed-up",
                        "The 15 models with the lowest speed-up; below 1, compiled code is slower.",
                        f"sort(bottomk(15, min by (model, {BY}) ({SPEEDUP})))",
                        "none",
                    ),
                ),
            ),
        ],
        variables=frame.shared(),
    )
