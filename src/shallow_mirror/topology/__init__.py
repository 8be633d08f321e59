"""Which clusters and topics feed which, by the mirror, archive and restore files of a folder."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.topology.flows import Topology as Topology
    from shallow_mirror.topology.folder_files import read_topology as read_topology
    from shallow_mirror.topology.topology_svg import build_svg as build_svg
else:
    __getattr__, __dir__ = lazy_names(__name__)
