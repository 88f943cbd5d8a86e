"""Classes over groups of devices: the same program in one process, under torchrun and on a Ray cluster.

`initialize` says where, `remote_class` and `remote_function` what; `docs/infra.md` teaches it in ten minutes.
"""

from turnout.infra.classes import on_group, remote_class
from turnout.infra.device_group import DeviceGroup
from turnout.infra.device_mesh import DeviceMesh
from turnout.infra.lazy_collect import LazyCollect
from turnout.infra.methods import remote_function
from turnout.infra.notifiers import DingTalkNotifier, SlackNotifier, WebhookNotifier
from turnout.infra.placement_picture import get_device_placement
from turnout.infra.plans import Plan
from turnout.infra.platforms import Platform
from turnout.infra.proxies import iterate, plan
from turnout.infra.ray.resource_manager import ResourceManager
from turnout.infra.remote_errors import CallTimeoutError
from turnout.infra.start import initialize, shutdown
from turnout.infra.world import notify

__all__ = [
    "CallTimeoutError",
    "DeviceGroup",
    "DeviceMesh",
    "DingTalkNotifier",
    "LazyCollect",
    "Plan",
    "Platform",
    "ResourceManager",
    "SlackNotifier",
    "WebhookNotifier",
    "get_device_placement",
    "initialize",
    "iterate",
    "notify",
    "on_group",
    "plan",
    "remote_class",
    "remote_function",
    "shutdown",
]
