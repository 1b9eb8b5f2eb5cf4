rule prepare:
    input:
        source_of,
    output:
        directory(f"{RESULTS}/scenes/{{scene}}"),
    log:
        f"{RESULTS}/logs/prepare/{{scene}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/prepare/{{scene}}.tsv"
    conda:
        "../../envs/odin.yaml"
    threads: 2
    params:
        options=prepare_options,
    message:
        "{wildcards.scene}: preparing images, cameras and points"
    shell:
        "python -m odin prepare {params.options:q} --name {wildcards.scene:q} --out {output:q} 2>&1 | tee {log:q}"
