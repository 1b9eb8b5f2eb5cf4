rule evaluate:
    input:
        scene=f"{RESULTS}/scenes/{{scene}}",
        run=f"{RESULTS}/runs/{RUN}/run.json",
        summary=f"{RESULTS}/runs/{RUN}/summary.json",
        model=f"{RESULTS}/runs/{RUN}/model.ply",
    output:
        f"{RESULTS}/runs/{RUN}/metrics.json",
    log:
        f"{RESULTS}/logs/evaluate/{RUN}.log",
    benchmark:
        f"{RESULTS}/benchmarks/evaluate/{RUN}.tsv"
    conda:
        "../../envs/odin.yaml"
    threads: 1
    params:
        lpips=CONFIG.lpips_options(),
        folder=folder_of_output,
    message:
        "{wildcards.scene}: scoring {wildcards.pipeline} {wildcards.recipe}, seed {wildcards.seed}"
    shell:
        "python -m odin evaluate {params.folder:q} {params.lpips:q} $ODIN_EVALUATE_OPERATION 2>&1 | tee {log:q}"
