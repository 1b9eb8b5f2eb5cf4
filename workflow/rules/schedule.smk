rule schedule:
    input:
        scene=f"{RESULTS}/scenes/{{scene}}",
    output:
        plan=f"{RESULTS}/plans/{{scene}}/{{pipeline}}/seed{{seed}}/{{ranking}}.odin",
        figure=report(
            f"{RESULTS}/plans/{{scene}}/{{pipeline}}/seed{{seed}}/{{ranking}}.png",
            caption="../report/plan.rst",
            category="Plans",
            labels={"scene": "{scene}", "seed": "{seed}", "ranks by": "{ranking}"},
        ),
    log:
        f"{RESULTS}/logs/schedule/{{scene}}/{{pipeline}}/seed{{seed}}/{{ranking}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/schedule/{{scene}}/{{pipeline}}/seed{{seed}}/{{ranking}}.tsv"
    conda:
        "../../envs/odin.yaml"
    threads: 1
    params:
        preset=CONFIG.preset,
        batch=CONFIG.batch,
        ranks=CONFIG.ranks,
        views=CONFIG.views,
    message:
        "{wildcards.scene}: planning batches (seed {wildcards.seed}, ranks by {wildcards.ranking})"
    shell:
        "balance=$([ {wildcards.ranking} = balanced ] && echo --balance || true)\n"
        "python -m odin schedule --data {input.scene:q} --pipeline {wildcards.pipeline:q} --preset {params.preset:q}"
        " --batch {params.batch} --ranks {params.ranks} --views {params.views} --seed {wildcards.seed} $balance"
        " --explain --out {output.plan:q} --figure {output.figure:q} > {log:q} 2>&1"
