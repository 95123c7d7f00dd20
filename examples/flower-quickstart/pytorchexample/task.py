"""pytorchexample: A Flower / PyTorch app."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CLASSES, PIXELS = 10, 8


class Net(nn.Module):
    """Model (simple CNN adapted from 'PyTorch: A 60 Minute Blitz')"""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1 = nn.Linear(6 * 3 * 3, 32)
        self.fc2 = nn.Linear(32, CLASSES)

    def forward(self, x):
        """Return the logits of a batch of pictures."""
        x = self.pool(F.relu(self.conv1(x)))
        x = x.view(-1, 6 * 3 * 3)
        x = F.relu(self.fc1(x))
        return self.fc2(x)


def pictures(count: int, labels: torch.Tensor, seed: int) -> TensorDataset:
    """Noisy pictures of ten patterns: small, and nothing is downloaded."""
    patterns = torch.randn(CLASSES, 1, PIXELS, PIXELS, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(count, 1, PIXELS, PIXELS, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(patterns[labels] + 1.5 * noise, labels)


def load_data(partition_id: int, num_partitions: int, batch_size: int):
    """Load a partition: each client has pictures of two classes only."""
    first = partition_id * CLASSES // num_partitions
    labels = (first + torch.arange(100) % 2) % CLASSES
    # Divide data on each node: 80% train, 20% test
    train_set = pictures(80, labels[:80], seed=1000 + partition_id)
    test_set = pictures(20, labels[80:], seed=2000 + partition_id)
    trainloader = DataLoader(train_set, batch_size=batch_size, shuffle=True)
    testloader = DataLoader(test_set, batch_size=batch_size)
    return trainloader, testloader


def load_centralized_dataset():
    """Load test set and return dataloader."""
    return DataLoader(pictures(500, torch.arange(500) % CLASSES, seed=1), batch_size=128)


def train(net, trainloader, epochs, lr, device):
    """Train the model on the training set."""
    net.to(device)  # move model to GPU if available
    criterion = torch.nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


def test(net, testloader, device):
    """Validate the model on the test set."""
    net.to(device)
    criterion = torch.nn.CrossEntropyLoss()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for images, labels in testloader:
            outputs = net(images.to(device))
            loss += criterion(outputs, labels.to(device)).item()
            correct += (torch.max(outputs.data, 1)[1] == labels.to(device)).sum().item()
    accuracy = correct / len(testloader.dataset)
    loss = loss / len(testloader)
    return loss, accuracy
