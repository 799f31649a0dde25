"""Carries out the command streams of virtual devices on real ones."""

from forebay_wire import torch_builds

torch_builds.add_to(__path__)
