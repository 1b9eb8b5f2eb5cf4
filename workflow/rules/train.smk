# Training state lies outside the declared outputs, since Snakemake deletes those of a job that was killed: a run goes on
# from its last checkpoint. Only a finished run is published. The folder's name holds all that a run is identified by,
# the plan (and with it the scene) by its hash, so that other settings never meet an old run's state.
rule train:
    input:
        scene=f"{RESULTS}/scenes/{{scene}}",
        plan=plan_of,
    output:
        run=f"{RESULTS}/runs/{RUN}/run.json",
        summary=f"{RESULTS}/runs/{RUN}/summary.json",
        model=f"{RESULTS}/runs/{RUN}/model.ply",
        provenance=f"{RESULTS}/runs/{RUN}/provenance.json",
        spans=directory(f"{RESULTS}/runs/{RUN}/spans"),
    log:
        f"{RESULTS}/logs/train/{RUN}.log",
    benchmark:
        f"{RESULTS}/benchmarks/train/{RUN}.tsv"
    conda:
        "../../envs/odin.yaml"
    threads: all_cores
    params:
        mode=mode_of,
        preset=CONFIG.preset,
        ranks=CONFIG.ranks,
        batch=CONFIG.batch,
        views=CONFIG.views,
        work=f"{RESULTS}/work/{RUN}/{CONFIG.preset}-w{CONFIG.ranks}-b{CONFIG.batch}-v{CONFIG.views}",
    message:
        "{wildcards.scene}: training {wildcards.pipeline} {wildcards.recipe}, seed {wildcards.seed}"
    shell:
        "work={params.work:q}-$(sha256sum < {input.plan:q} | cut -c1-12)\n"
        "python -m odin train --data {input.scene:q} --plan {input.plan:q} --pipeline {wildcards.pipeline:q}"
        " --preset {params.preset:q} --mode {params.mode} --ranks {params.ranks} --batch {params.batch}"
        " --views {params.views} --seed {wildcards.seed} --out $work $ODIN_TRAIN_OPERATION 2>&1 | tee {log:q}\n"
        "mkdir -p {output.spans:q}\n"
        "cp $work/spans/* {output.spans:q}\n"
        "cp $work/run.json $work/summary.json $work/model.ply $work/provenance.json $(dirname {output.run:q})\n"
        "rm -rf $work/checkpoints"
