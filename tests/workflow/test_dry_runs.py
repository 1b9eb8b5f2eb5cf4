"""What would run, and what is refused before anything does."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from .conftest import ROOT, TINY, snakemake

DEFAULT = ROOT / "config" / "config.yaml"
CAPTURES = ROOT / "config" / "captures.yaml"


def test_default_config_runs_every_recipe_on_every_scene(tmp_path: Path):
    result = snakemake(tmp_path, DEFAULT, "--dry-run")
    assert result.returncode == 0, result.text
    scenes, recipes = 3, 4
    assert result.jobs == {
        "prepare": scenes,
        "schedule": scenes * 2,  # ranks by position and balanced
        "train": scenes * recipes,
        "evaluate": scenes * recipes,
        "tables": 1,
        "figures": 1,
        "all": 1,
    }


def test_captures_config_needs_only_a_folder(tmp_path: Path, captures: Path):
    result = snakemake(tmp_path, CAPTURES, "--dry-run", values=(f"captures_root={captures}",))
    assert result.returncode == 0, result.text
    assert (result.jobs["prepare"], result.jobs["train"]) == (3, 12)
    assert "gallery:" not in result.text  # a config on the command line replaces the default one


def test_command_line_changes_single_keys(tmp_path: Path):
    result = snakemake(tmp_path, DEFAULT, "--dry-run", values=("seeds=[0,1,2]", "recipes=[quality]", "views=8"))
    assert (result.jobs["prepare"], result.jobs["schedule"], result.jobs["train"]) == (3, 9, 9)


def test_default_config_is_found_without_naming_it(tmp_path: Path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.yaml").write_text(DEFAULT.read_text())
    result = snakemake(tmp_path, None, "--dry-run", values=("recipes=[sync]",))
    assert result.returncode == 0, result.text
    assert (result.jobs["prepare"], result.jobs["train"]) == (3, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"veiws": 8}, "veiws: unknown key; did you mean views?"),
        ({"runtime": {"timeout_s": None}}, "runtime.timeout_s: got null; allowed: a valid number"),
        ({"recipes": ["sync", "qality"]}, 'recipes.1: got "qality"; allowed: ddp, ddp-balanced, sync'),
        ({"scenes": {"s": {"data": "gallery:orbit", "test_every": 1}}}, "scenes.s.test_every: got 1; allowed: greater"),
        ({"scenes": {"s": {"data": "fox"}}}, "captures_root: null, but scenes s are relative to it"),
        ({"captures_root": "/no/such/folder", "scenes": {"s": {"data": "fox"}}}, "captures_root: no folder /no/such"),
        ({"evaluation": {"lpips_sha256": "0" * 64}}, "evaluation: lpips_weights and lpips_sha256 belong together"),
    ],
)
def test_wrong_configs_are_refused_with_one_message(tmp_path: Path, change: dict, message: str):
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"scenes": {"orbit": {"data": "gallery:orbit"}}} | change))
    result = snakemake(tmp_path, config, "--dry-run")
    assert result.returncode == 1
    assert "the config cannot be used:" in result.text
    assert message in result.text
    assert "Traceback" not in result.text
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("text", ["", "# only a comment\n", "{}\n"])
def test_an_empty_config_file_is_refused_without_a_traceback(tmp_path: Path, text: str):
    config = tmp_path / "config.yaml"
    config.write_text(text)
    result = snakemake(tmp_path, config, "--dry-run")
    assert result.returncode == 1
    assert "the config is empty" in result.text or "keys at top level" in result.text
    assert "Traceback" not in result.text


def test_names_with_every_allowed_character_are_not_split(tmp_path: Path, tiny_scene: Path):
    config = tmp_path / "config.yaml"
    labels = ["a_b.c+d-e", "a_b", "a", "3dgs", "seed0"]
    scenes = {label: {"data": str(tiny_scene)} for label in labels}
    config.write_text(yaml.safe_dump({"name": "n_1.2+x", "scenes": scenes, "recipes": ["quality"], "seeds": [0, 10]}))
    result = snakemake(tmp_path, config, "--dry-run")
    assert result.returncode == 0, result.text
    assert (result.jobs["prepare"], result.jobs["train"]) == (5, 10)
    for label in labels:
        assert f"results/n_1.2+x/runs/{label}/3dgs/quality/seed10/model.ply" in result.text


def test_lint_is_clean(tmp_path: Path):
    result = snakemake(tmp_path, DEFAULT, "--lint")
    assert result.returncode == 0, result.text


def test_tiny_config_is_small(tmp_path: Path, tiny_scene: Path):
    result = snakemake(tmp_path, TINY, "--dry-run", values=(f"captures_root={tiny_scene}",))
    assert sum(result.jobs.values()) == 9
