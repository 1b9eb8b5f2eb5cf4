TABLES = [f"{RESULTS}/tables/{name}.{suffix}" for name in ("quality", "throughput") for suffix in ("md", "csv")]
OVERVIEWS = [
    f"{RESULTS}/figures/{name}-{pipeline}.png" for name in ("throughput", "psnr") for pipeline in CONFIG.pipelines
]
CLOSE_UPS = [
    f"{RESULTS}/figures/{name}-{pipeline}-{scene}-w{CONFIG.ranks}-b{CONFIG.batch}.png"
    for name in ("time-split", "gantt")
    for pipeline in CONFIG.pipelines
    for scene in CONFIG.scenes
]
FIGURES = OVERVIEWS + CLOSE_UPS


rule tables:
    input:
        metrics=expand("{run}/metrics.json", run=RUN_FOLDERS),
    output:
        markdown=[path for path in TABLES if path.endswith(".md")],
        csv=report(
            [path for path in TABLES if path.endswith(".csv")],
            caption="../report/tables.rst",
            category="Tables",
        ),
    log:
        f"{RESULTS}/logs/tables.log",
    benchmark:
        f"{RESULTS}/benchmarks/tables.tsv"
    conda:
        "../../envs/odin.yaml"
    params:
        runs=RUN_FOLDERS,
        out=folder_of_output,
    message:
        "tables of quality and throughput"
    shell:
        "python -m odin tables --runs {params.runs:q} --out {params.out:q} > {log:q} 2>&1"


rule figures:
    input:
        metrics=expand("{run}/metrics.json", run=RUN_FOLDERS),
        spans=expand("{run}/spans", run=RUN_FOLDERS),
    output:
        overviews=report(OVERVIEWS, caption="../report/overviews.rst", category="Figures"),
        close_ups=report(CLOSE_UPS, caption="../report/close_ups.rst", category="Time of a run"),
    log:
        f"{RESULTS}/logs/figures.log",
    benchmark:
        f"{RESULTS}/benchmarks/figures.tsv"
    conda:
        "../../envs/odin.yaml"
    params:
        runs=RUN_FOLDERS,
        out=folder_of_output,
    message:
        "figures"
    shell:
        "python -m odin figures --runs {params.runs:q} --out {params.out:q} > {log:q} 2>&1"
