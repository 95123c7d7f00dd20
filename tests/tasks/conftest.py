"""What several tests of this folder need."""

import pytest
import torch


@pytest.fixture
def one_thread():
    """Compute with one thread, as workers do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
