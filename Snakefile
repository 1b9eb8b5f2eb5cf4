# `snakemake` in this folder finds this file; the workflow itself is in workflow/.
include: "workflow/Snakefile"


workflow.default_target = "all"
