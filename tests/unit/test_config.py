"""The YAML edge: defaults, and messages that name the key, what it got and what is allowed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from odin import config as config_module
from odin.config import RECIPES, ConfigError, RuntimeConfig, config_sha256, json_schema, load_config, with_key_table
from odin.training.options import MODES, TRANSPORTS, TrainOptions

ROOT = Path(__file__).resolve().parents[2]
ORBIT = {"scenes": {"orbit": {"data": "gallery:orbit"}}}


def problems(raw: dict, **options) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(raw, **options)
    first, *lines = str(caught.value).splitlines()
    assert first == "the config cannot be used:"
    return [line.strip() for line in lines]


def scene(**keys) -> dict:
    return {"scenes": {"s": {"data": "gallery:orbit", **keys}}}


def test_defaults_are_filled():
    config = load_config(ORBIT)
    assert (config.name, config.ranks, config.batch, config.views, config.num_steps) == ("default", 2, 4, 1200, 300)
    assert config.recipes == ("ddp", "sync", "quality")
    assert config.scenes["orbit"].test_every == 8
    assert config.runtime.timeout_s == 120.0


def test_runtime_defaults_are_those_of_the_command_line():
    options = TrainOptions(scene_dir="", plan="")
    runtime = RuntimeConfig()
    for name in ("timeout_s", "checkpoint_every", "transport"):
        assert getattr(runtime, name) == getattr(options, name)


def test_last_step_may_be_short():
    assert load_config({**ORBIT, "views": 41}).num_steps == 11


@pytest.mark.parametrize("file", ["config.yaml", "captures.yaml"])
def test_shipped_configs_are_valid(file: str):
    raw = yaml.safe_load((ROOT / "config" / file).read_text())
    load_config(raw, check_files=False)
    jsonschema.validate(raw, json.loads(json_schema()))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({**ORBIT, "veiws": 5}, "veiws: unknown key; did you mean views? allowed here: name, captures_root, scenes"),
        (scene(tset_every=8), "scenes.s.tset_every: unknown key; did you mean test_every? allowed here: data, width"),
        ({**ORBIT, "runtime": {"port": 1}}, "runtime.port: unknown key; allowed here: timeout_s, checkpoint_every"),
        ({**ORBIT, "views": None}, "views: got null; allowed: a valid integer"),
        ({**ORBIT, "runtime": None}, "runtime: got null; allowed: a mapping of keys"),
        ({"scenes": {"s": None}}, "scenes.s: got null; allowed: a mapping of keys"),
        ({"scenes": None}, "scenes: got null; allowed: a mapping of keys"),
        ({"scenes": {}}, "scenes: got {}; allowed: at least one entry"),
        ({"ranks": 2}, "scenes: missing; it has no default"),
        ({**ORBIT, "ranks": "two"}, 'ranks: got "two"; allowed: a valid integer'),
        ({**ORBIT, "ranks": True}, "ranks: got true; allowed: a valid integer"),
        ({**ORBIT, "ranks": 0}, "ranks: got 0; allowed: greater than or equal to 1"),
        ({**ORBIT, "recipes": "sync"}, 'recipes: got "sync"; allowed: a list'),
        ({**ORBIT, "recipes": ["sink"]}, 'recipes.0: got "sink"; allowed: ddp, ddp-balanced, sync'),
        ({**ORBIT, "seeds": [1, 1]}, "seeds: [1, 1] names something twice; allowed: each once"),
        ({**ORBIT, "pipelines": ["4dgs"]}, "pipelines.0: pipeline '4dgs' is not known; allowed: 3dgs"),
        ({**ORBIT, "preset": "huge"}, "preset: preset 'huge' is not known for pipeline 3dgs; allowed: paper, small."),
        ({**ORBIT, "name": "a/b"}, 'name: got "a/b"; allowed: letters, digits and _ . + -'),
        ({"scenes": {"..": {"data": "gallery:orbit"}}}, 'scenes...: got ".."; allowed: letters, digits and'),
        (scene(test_every=1), "scenes.s.test_every: got 1; allowed: greater than or equal to 2"),
        (scene(data="gallery:orbt"), 'scenes.s.data: got "gallery:orbt"; allowed: gallery:orbit, gallery:rooms'),
        (scene(width=161), "scenes.s.width: got 161; allowed: a multiple of 4"),
        (scene(model="sparse/1"), 'scenes.s.model: got "sparse/1"; a gallery scene has no other one'),
        (scene(data="/", num_views=9), "scenes.s.num_views: got 9; allowed: only with gallery scenes (use factor)"),
        (scene(data="/", factor=0.5), "scenes.s.factor: got 0.5; allowed: greater than or equal to 1"),
        (scene(background=[0, 0, 2]), "scenes.s.background.2: got 2; allowed: less than or equal to 1"),
        (scene(data="relative"), "captures_root: null, but scenes s are relative to it; give it in the file or with"),
        (scene(data="/no/such/capture"), "scenes.s.data: no such data: /no/such/capture"),
        ({**scene(data="a"), "captures_root": "/no/root"}, "captures_root: no folder /no/root"),
        ({**ORBIT, "evaluation": {"lpips_sha256": "0" * 64}}, "evaluation: lpips_weights and lpips_sha256 belong"),
        ({**ORBIT, "evaluation": {"lpips_weights": "w.pt"}}, "evaluation: lpips_weights and lpips_sha256 belong"),
    ],
)
def test_one_message_for_each_wrong_key(raw: dict, expected: str):
    (line,) = problems(raw)
    assert line.startswith(expected)


def test_text_from_the_command_line_is_read_as_yaml():
    """Snakemake hands over the inner values of `--config runtime='{timeout_s: 9}'` as text."""
    config = load_config({**ORBIT, "seeds": ["0", "3"], "runtime": {"timeout_s": "9", "save_renders": "true"}})
    assert config.seeds == (0, 3)
    assert (config.runtime.timeout_s, config.runtime.save_renders) == (9.0, True)


def test_all_wrong_keys_are_listed_at_once():
    assert len(problems({"views": 0, "batch": 0, "scenes": {"s": {"data": "gallery:orbit", "factor": 0}}})) == 3


def test_an_empty_config_says_so():
    with pytest.raises(ConfigError, match="the config is empty; it needs at least `scenes`"):
        load_config({})


def test_lpips_weights_are_checked_before_anything_runs(tmp_path: Path):
    weights = tmp_path / "vgg.pt"
    evaluation = {"lpips_weights": str(weights), "lpips_sha256": "0" * 64}
    assert "never downloaded" in problems({**ORBIT, "evaluation": evaluation})[0]
    weights.write_bytes(b"weights")
    found = hashlib.sha256(b"weights").hexdigest()
    assert problems({**ORBIT, "evaluation": evaluation}) == [
        f"evaluation.lpips_sha256: {weights} has sha256 {found}, not {'0' * 64}"
    ]
    config = load_config({**ORBIT, "evaluation": evaluation | {"lpips_sha256": found}})
    assert config.lpips_options() == ["--lpips-weights", str(weights), "--lpips-sha256", found]


def test_hash_sees_scientific_keys_only():
    base = config_sha256(load_config(ORBIT))
    for operational in ({"runtime": {"timeout_s": 9, "transport": "gloo"}}, {"name": "x"}, {"captures_root": "/"}):
        assert config_sha256(load_config({**ORBIT, **operational})) == base
    for scientific in ({"views": 8}, {"seeds": [1]}, {"ranks": 1}, {"preset": "paper"}, scene(num_views=48)):
        assert config_sha256(load_config({**ORBIT, **scientific})) != base


def test_scene_options_name_only_what_was_given(tmp_path: Path):
    (tmp_path / "fox" / "sparse" / "0").mkdir(parents=True)
    points = tmp_path / "fox" / "sparse" / "0" / "points3D.bin"
    points.touch()
    keys = {"factor": 2, "skip_missing": True, "data": "fox", "background": [1, 1, 1]}
    config = load_config({**scene(**keys), "captures_root": str(tmp_path)})
    fox = config.scenes["s"]
    assert config.prepare_options(fox) == [
        *("--data", str(tmp_path / "fox"), "--test-every", "8", "--background", "1.0", "1.0", "1.0"),
        *("--factor", "2.0", "--skip-missing"),
    ]
    assert config.tracked_files(fox) == [str(points)]
    orbit = load_config(ORBIT)
    assert orbit.tracked_files(orbit.scenes["orbit"]) == []


def test_choices_are_those_of_training():
    assert {recipe.mode for recipe in RECIPES.values()} == set(MODES)
    assert set(RuntimeConfig.model_json_schema()["properties"]["transport"]["enum"]) == set(TRANSPORTS)


def test_schema_and_table_of_keys_are_up_to_date():
    assert config_module.SCHEMA_PATH.read_text() == json_schema(), "run `make schema`"
    table = config_module.KEYS_PATH.read_text()
    assert table == with_key_table(table), "run `make schema`"
    assert "| `runtime.timeout_s` | `120.0` |" in table


def test_schema_refuses_unknown_keys_everywhere():
    schema = json.loads(json_schema())
    for part in (schema, *schema["$defs"].values()):
        assert part["additionalProperties"] is False
