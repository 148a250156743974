"""The README's section on Ray: its commands are read as they stand, its config is a fleet's.

What they do is run by tests/runtime/serve/ray and tests/runtime/cli/test_cli_batch.py.
"""

from __future__ import annotations

import shlex
from importlib import import_module

import pytest
import yaml

from runtime.cli.entry import build_parser
from runtime.cli.serve_ray import wants_ray
from runtime.serve.ray.options import read_options
from tests.helpers.readme import RAY_SECTION, readme_blocks

BLOCKS = [block for block in readme_blocks() if block.section == RAY_SECTION]
COMMANDS = [each for block in BLOCKS if block.language == "" for each in block.commands()]


def test_the_section_shows_a_fleet_and_a_batch() -> None:
    assert {"serve", "batch"} == {shlex.split(command)[3] for command in COMMANDS}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_one(command: str) -> None:
    python, *module, name = shlex.split(command)[:4]
    assert (python, module) == ("python", ["-m", "runtime"])
    args = build_parser().parse_args(shlex.split(command)[3:])
    assert wants_ray(args) == (name == "serve")


def test_the_config_names_a_builder_and_arguments_that_it_takes() -> None:
    [config] = [block.text for block in BLOCKS if block.language == "yaml"]
    [application] = yaml.safe_load(config)["applications"]
    module, _, name = application["import_path"].partition(":")
    assert callable(getattr(import_module(module), name))
    options = read_options(application["args"])
    assert (options.max_replicas, options.device) == (8, "cuda:0,cuda:1")
