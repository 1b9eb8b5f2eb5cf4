"""The YAML edge: what config/config.yaml may say, its defaults, and one message that names whatever is wrong.

    python -m odin.config      # writes the JSON schema, and the table of keys in config/README.md

Defaults are filled here and not by the workflow engine, so every job of a run sees the same resolved values. Scientific
keys decide results and are tracked by the workflow; those under `runtime` never make it train again.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from odin.data.gallery.scenes import DEFAULT_VIEWS, SCENES

GALLERY_PREFIX = "gallery:"
# Names become folders and parts of wildcards: nothing that a shell, a path or a pattern could take apart.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$"
_ROOT = Path(__file__).resolve().parents[1]
SCHEMA_PATH = _ROOT / "workflow" / "schemas" / "config.schema.json"
KEYS_PATH = _ROOT / "config" / "README.md"
KEYS_BEGIN, KEYS_END = "<!-- keys: written by `make schema` -->", "<!-- end of keys -->"


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A row of the tables: a mode and the advantages it gets."""

    mode: Literal["ddp", "sync", "quality"]
    balance: bool = False  # ranks chosen by predicted cost instead of by position in the batch


RECIPES: dict[str, Recipe] = {
    "ddp": Recipe(mode="ddp"),
    "ddp-balanced": Recipe(mode="ddp", balance=True),
    "sync": Recipe(mode="sync"),
    "sync-balanced": Recipe(mode="sync", balance=True),
    "quality": Recipe(mode="quality"),
    "quality-balanced": Recipe(mode="quality", balance=True),
}


class ConfigError(ValueError):
    """Everything that is wrong with a config, a line for each key."""


class _Edge(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _scalar(value: Any) -> Any:
    """Snakemake hands over values inside of `--config key={a: 1}` or `key=[1]` as text."""
    return yaml.safe_load(value) if isinstance(value, str) else value


Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Int = Annotated[int, BeforeValidator(_scalar)]
Float = Annotated[float, BeforeValidator(_scalar)]
Bool = Annotated[bool, BeforeValidator(_scalar)]
Channel = Annotated[Float, Field(ge=0, le=1)]
Seed = Annotated[Int, Field(ge=0, lt=2**63)]


class SceneConfig(_Edge):
    """One scene, under the label that names it in folders and tables."""

    data: str = Field(
        min_length=1,
        description="`gallery:NAME`, a COLMAP folder or a transforms.json; from `captures_root`",
    )
    width: Int | None = Field(None, ge=16, multiple_of=4, description="image width of a gallery scene, pixels")
    num_views: Int | None = Field(None, ge=6, description="number of views of a gallery scene")
    factor: Float | None = Field(None, ge=1, description="divide the images' size by this")
    images: str | None = Field(None, description="another image folder than the default one")
    model: str | None = Field(None, description="another COLMAP model, such as sparse/1")
    background: tuple[Channel, Channel, Channel] = Field((0.0, 0.0, 0.0), description="colour under transparent pixels")
    test_every: Int = Field(8, ge=2, description="every how-manyeth view, by name, is a test view")
    skip_missing: Bool = Field(False, description="leave out views without an image file instead of stopping")

    @property
    def gallery_name(self) -> str | None:
        return self.data.removeprefix(GALLERY_PREFIX) if self.data.startswith(GALLERY_PREFIX) else None


class EvaluationConfig(_Edge):
    lpips_weights: str | None = Field(None, description="TorchScript of the LPIPS network; none: LPIPS is n/a")
    lpips_sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$", description="hash of that file")


class RuntimeConfig(_Edge):
    """Operational: may change between a run and its continuation, and never makes anything train again."""

    timeout_s: Float = Field(120.0, gt=0, description="longest wait for a peer before the job ends with an error")
    checkpoint_every: Int = Field(250, ge=0, description="steps between checkpoints, 0 for none")
    transport: Literal["auto", "shared-memory", "gloo"] = Field("auto", description="how ranks exchange gradients")
    save_renders: Bool = Field(False, description="keep the rendered test views as PNG")


class Config(_Edge):
    """A benchmark: every recipe, pipeline and seed on every scene."""

    name: Name = Field("default", description="results go to `results/<name>`")
    captures_root: str | None = Field(None, description="folder that relative paths of scenes start at")
    scenes: dict[Name, SceneConfig] = Field(min_length=1, description="label: scene")
    pipelines: tuple[str, ...] = Field(("3dgs",), min_length=1, description="methods")
    recipes: tuple[str, ...] = Field(("ddp", "sync", "quality"), min_length=1, description="rows of the tables")
    seeds: tuple[Seed, ...] = Field((0,), min_length=1, description="one run for each; tables show the spread")
    ranks: Int = Field(2, ge=1, description="processes of a run")
    batch: Int = Field(4, ge=1, description="views of a step; does not depend on the ranks")
    views: Int = Field(1200, ge=1, description="training budget in views seen; steps = views / batch, rounded up")
    preset: str = Field("small", description="constants of the pipeline")
    evaluation: EvaluationConfig = Field(EvaluationConfig(), description="how models are judged")
    runtime: RuntimeConfig = Field(RuntimeConfig(), description="operational settings, which decide no result")

    @property
    def num_steps(self) -> int:
        return math.ceil(self.views / self.batch)

    def data_path(self, scene: SceneConfig) -> str:
        """What `odin prepare --data` takes."""
        if scene.gallery_name is not None:
            return scene.data
        return str(Path(self.captures_root or ".").expanduser() / Path(scene.data).expanduser())

    def prepare_options(self, scene: SceneConfig) -> list[str]:
        """Options of `odin prepare` for this scene, all of them scientific."""
        options = ["--data", self.data_path(scene), "--test-every", str(scene.test_every)]
        options += ["--background", *map(str, scene.background)]
        for name in ("width", "num_views", "factor", "images", "model"):
            if (value := getattr(scene, name)) is not None:
                options += [f"--{name.replace('_', '-')}", str(value)]
        return [*options, *(["--skip-missing"] if scene.skip_missing else [])]

    def tracked_files(self, scene: SceneConfig) -> list[str]:
        """Files on disk whose change means that the scene has to be prepared again."""
        if scene.gallery_name is not None:
            return []
        path = Path(self.data_path(scene))
        if path.is_file():
            return [str(path)]
        model = path / (scene.model or "sparse/0")
        files = [*model.glob("*.bin"), *model.glob("*.txt")] or path.glob("*.json")
        return sorted(map(str, files))

    def lpips_options(self) -> list[str]:
        """Options of `odin evaluate` for LPIPS."""
        weights, sha256 = self.evaluation.lpips_weights, self.evaluation.lpips_sha256
        if weights is None or sha256 is None:
            return []
        return ["--lpips-weights", str(Path(weights).expanduser()), "--lpips-sha256", sha256]


def load_config(raw: Mapping[str, Any], *, check_files: bool = True) -> Config:
    """Check a config and fill its defaults.

    check_files: also look whether folders and weights exist. Raises ConfigError with a line for each wrong key.
    """
    if not raw:
        raise ConfigError("the config is empty; it needs at least `scenes`. See config/config.yaml.")
    try:
        # Through JSON, where a list may stand for a tuple although types are strict.
        config = Config.model_validate_json(json.dumps(raw, default=str))
    except ValidationError as error:
        raise ConfigError(_listed(_explanations(error.errors()))) from None
    problems = [*_unknown_names(config), *_scene_problems(config), *_lpips_problems(config.evaluation, check_files)]
    if check_files:
        problems += _missing_data(config)
    if problems:
        raise ConfigError(_listed(problems))
    return config


def config_sha256(config: Config) -> str:
    """Hash of everything in a resolved config that can decide a result."""
    content = config.model_dump(mode="json", exclude={"runtime", "name", "captures_root"})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


_ALLOWED = {
    "model_type": "a mapping of keys",
    "dict_type": "a mapping of keys",
    "tuple_type": "a list",
    "too_short": "at least one entry",
    "too_long": "fewer entries",
}


_SECTIONS: dict[str, type[BaseModel]] = {
    "scenes": SceneConfig,
    "evaluation": EvaluationConfig,
    "runtime": RuntimeConfig,
}


def _explanations(errors: list[Any]) -> list[str]:
    """A line for each error, but none for a list that is only too short because its entries are wrong."""
    inner = {error["loc"][:-1] for error in errors}
    return [_explain(error) for error in errors if not (error["type"] == "too_short" and error["loc"] in inner)]


def _explain(error: Any) -> str:
    """One line from one of pydantic's errors: key, got, allowed."""
    location = tuple(part for part in error["loc"] if part != "[key]")
    key = ".".join(str(part) for part in location) or "the config"
    kind, got = error["type"], error.get("input")
    if kind == "extra_forbidden":
        keys = list(_model_at(location).model_fields)
        close = difflib.get_close_matches(str(location[-1]), keys, n=1, cutoff=0.7)
        hint = f"did you mean {close[0]}? " if close else ""
        return f"{key}: unknown key; {hint}allowed here: {', '.join(keys)}"
    if kind == "missing":
        return f"{key}: missing; it has no default"
    if kind == "string_pattern_mismatch" and "sha256" not in key:
        return f"{key}: got {_shown(got)}; allowed: letters, digits and _ . + - (a letter or digit first)"
    allowed = _ALLOWED.get(kind, error["msg"].removeprefix("Input should be "))
    return f"{key}: got {_shown(got)}; allowed: {allowed}"


def _model_at(location: tuple) -> type[BaseModel]:
    """The model whose key `location` would be."""
    if len(location) == 1:
        return Config
    return _SECTIONS[location[0]]


def _unknown_names(config: Config) -> list[str]:
    from odin.pipelines.protocol import get_pipeline, get_preset

    problems = []
    for key in ("pipelines", "recipes", "seeds"):
        values = getattr(config, key)
        if len(set(values)) < len(values):
            problems.append(f"{key}: {_shown(values)} names something twice; allowed: each once")
    for index, recipe in enumerate(config.recipes):
        if recipe not in RECIPES:
            problems.append(f"recipes.{index}: got {_shown(recipe)}; allowed: {', '.join(RECIPES)}")
    for index, name in enumerate(config.pipelines):
        try:
            get_preset(get_pipeline(name), config.preset)
        except ValueError as error:
            key = "preset" if str(error).startswith("preset") else f"pipelines.{index}"
            problems.append(f"{key}: {error}")
    return problems


def _scene_problems(config: Config) -> list[str]:
    problems = []
    for label, scene in config.scenes.items():
        key = f"scenes.{label}"
        if scene.gallery_name is None:
            problems += [
                f"{key}.{name}: got {getattr(scene, name)}; allowed: only with gallery scenes (use factor)"
                for name in ("width", "num_views")
                if getattr(scene, name) is not None
            ]
            continue
        if scene.gallery_name not in SCENES:
            allowed = ", ".join(GALLERY_PREFIX + name for name in SCENES)
            problems.append(f"{key}.data: got {_shown(scene.data)}; allowed: {allowed}, or a folder")
            continue
        problems += [
            f"{key}.{name}: got {_shown(getattr(scene, name))}; a gallery scene has no other one; drop it"
            for name in ("images", "model")
            if getattr(scene, name) is not None
        ]
        num_views = scene.num_views or DEFAULT_VIEWS[scene.gallery_name]
        num_train = num_views - math.ceil(num_views / scene.test_every)
        if num_train < 1:
            problems.append(f"{key}.test_every: of {num_views} views none is left for training; use a larger number")
    return problems


def _lpips_problems(evaluation: EvaluationConfig, check_files: bool) -> list[str]:
    weights, wanted = evaluation.lpips_weights, evaluation.lpips_sha256
    if (weights is None) != (wanted is None):
        return ["evaluation: lpips_weights and lpips_sha256 belong together; give both or neither"]
    if weights is None or not check_files:
        return []
    path = Path(weights).expanduser()
    if not path.is_file():
        return [f"evaluation.lpips_weights: no file {path}; weights are never downloaded: fetch it or drop the key"]
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return [] if found == wanted else [f"evaluation.lpips_sha256: {path} has sha256 {found}, not {wanted}"]


def _missing_data(config: Config) -> list[str]:
    scenes = {label: scene for label, scene in config.scenes.items() if scene.gallery_name is None}
    relative = [label for label, scene in scenes.items() if not Path(scene.data).expanduser().is_absolute()]
    if relative and config.captures_root is None:
        return [
            f"captures_root: null, but scenes {', '.join(relative)} are relative to it; "
            "give it in the file or with --config captures_root=FOLDER"
        ]
    if relative and not Path(config.captures_root or ".").expanduser().is_dir():
        return [f"captures_root: no folder {config.captures_root}"]
    paths = {label: config.data_path(scene) for label, scene in scenes.items()}
    return [f"scenes.{label}.data: no such data: {path}" for label, path in paths.items() if not Path(path).exists()]


def _shown(value: Any) -> str:
    return json.dumps(value, default=str)


def _listed(problems: Any) -> str:
    return "the config cannot be used:\n" + "\n".join(f"  {problem}" for problem in problems)


def json_schema() -> str:
    """JSON schema of the config, for editors and for tools that do not run Python."""
    return json.dumps(Config.model_json_schema(), indent=2, sort_keys=True) + "\n"


def key_table() -> str:
    """Markdown table of all keys with their defaults."""
    lines = ["| key | default | meaning |", "| --- | --- | --- |"]
    for name, field in Config.model_fields.items():
        lines.append(_key_row(name, field, is_section=name in _SECTIONS))
        for inner, inner_field in _SECTIONS[name].model_fields.items() if name in _SECTIONS else ():
            lines.append(_key_row(f"{name}.{'LABEL.' if name == 'scenes' else ''}{inner}", inner_field))
    return "\n".join(lines)


def _key_row(key: str, field: Any, *, is_section: bool = False) -> str:
    default = "(required)" if field.is_required() else "" if is_section else f"`{_shown(field.default)}`"
    return f"| `{key}` | {default} | {field.description} |"


def with_key_table(text: str) -> str:
    """`text` with the table between its two marks brought up to date."""
    before, _, rest = text.partition(KEYS_BEGIN)
    _, _, after = rest.partition(KEYS_END)
    return f"{before}{KEYS_BEGIN}\n\n{key_table()}\n\n{KEYS_END}{after}"


if __name__ == "__main__":
    SCHEMA_PATH.write_text(json_schema())
    KEYS_PATH.write_text(with_key_table(KEYS_PATH.read_text()))
