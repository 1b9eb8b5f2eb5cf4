# The resolved config, where things lie, and what operational settings reach the commands.
import os
import re
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

# Commands run with the interpreter that runs Snakemake and with the code of this checkout, whatever else is installed.
ROOT = Path(str(workflow.current_basedir)).parents[1]
sys.path.insert(0, str(ROOT))
os.environ.update(
    PATH=os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()]),
    PYTHONPATH=str(ROOT),
    PYTHONNOUSERSITE="1",
)

from odin.config import RECIPES, ConfigError, load_config

try:
    CONFIG = load_config(config)
except ConfigError as error:
    raise WorkflowError(str(error)) from None

# Operational settings go through the environment: they stay out of params and of the commands' text, which Snakemake
# tracks, so that another timeout or transport trains nothing again.
os.environ.update(
    ODIN_TRAIN_OPERATION=f"--timeout-s {CONFIG.runtime.timeout_s} --transport {CONFIG.runtime.transport}"
    f" --checkpoint-every {CONFIG.runtime.checkpoint_every}",
    ODIN_EVALUATE_OPERATION="--save-renders" if CONFIG.runtime.save_renders else "",
)

RESULTS = f"results/{CONFIG.name}"
RUN = "{scene}/{pipeline}/{recipe}/seed{seed}"
RUN_FOLDERS = expand(
    f"{RESULTS}/runs/{RUN}",
    scene=CONFIG.scenes,
    pipeline=CONFIG.pipelines,
    recipe=CONFIG.recipes,
    seed=CONFIG.seeds,
)


def one_of(names):
    """Pattern of exactly these names; nothing in them is special, and none is split."""
    return "|".join(re.escape(str(name)) for name in names)


wildcard_constraints:
    scene=one_of(CONFIG.scenes),
    pipeline=one_of(CONFIG.pipelines),
    recipe=one_of(CONFIG.recipes),
    seed=one_of(CONFIG.seeds),
    ranking="position|balanced",


def source_of(wildcards):
    """The files that a scene's geometry is read from; none for a gallery scene."""
    return CONFIG.tracked_files(CONFIG.scenes[wildcards.scene])


def prepare_options(wildcards):
    return CONFIG.prepare_options(CONFIG.scenes[wildcards.scene])


def plan_of(wildcards):
    """The plan that a recipe trains by; recipes that only differ in their mode share it."""
    ranking = "balanced" if RECIPES[wildcards.recipe].balance else "position"
    return f"{RESULTS}/plans/{{scene}}/{{pipeline}}/seed{{seed}}/{ranking}.odin".format(**wildcards)


def mode_of(wildcards):
    return RECIPES[wildcards.recipe].mode


def all_cores(wildcards):
    """Runs are timed, so nothing else may share the machine with one."""
    return max(CONFIG.ranks, workflow.cores or 1)


def folder_of_output(wildcards, output):
    return str(Path(output[0]).parent)
