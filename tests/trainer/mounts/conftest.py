from tests.trainer.agent.conftest import node

__all__ = ["node"]
