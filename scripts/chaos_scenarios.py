"""The crash matrix: every scenario of `scripts/chaos`, in the order in which they run."""

from __future__ import annotations

from chaos_parts.brokers import BROKERS
from chaos_parts.damage import DAMAGE
from chaos_parts.kills import KILLS
from chaos_parts.points import TASK_FAILS_TWICE, point_scenarios
from chaos_parts.policies import POLICIES
from chaos_parts.services import SERVICES
from chaos_parts.world import Scenario


def quick() -> list[Scenario]:
    """Every crash point once."""
    return point_scenarios()


def everything() -> list[Scenario]:
    """The whole matrix."""
    return [*quick(), *KILLS, TASK_FAILS_TWICE, *SERVICES, *BROKERS, *POLICIES, *DAMAGE]
