"""pytorchexample: A Flower / PyTorch app."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedpbc.flower import strategy_for
from pytorchexample.task import Net, load_centralized_dataset, test

# Create ServerApp
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""
    # Read run config
    fraction_evaluate: float = context.run_config["fraction-evaluate"]
    num_rounds: int = context.run_config["num-server-rounds"]
    lr: float = context.run_config["learning-rate"]

    # Load global model
    torch.manual_seed(0)
    global_model = Net()
    arrays = ArrayRecord(global_model.state_dict())

    # Changed, was: strategy = FedAvg(fraction_evaluate=fraction_evaluate). The class by its name is
    # fedpbc.flower.FedPBC(fraction_evaluate=fraction_evaluate)
    strategy = strategy_for(
        context.run_config["algorithm"],
        fraction_evaluate=fraction_evaluate,
        **files(context.run_config["folder"]),
    )

    # Start strategy, run it for `num_rounds`
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": lr}),
        num_rounds=num_rounds,
        evaluate_fn=global_evaluate,
    )

    # Save the model of each view to disk
    if folder := context.run_config["folder"]:
        for view, record in result.views.items():
            torch.save(record.to_torch_state_dict(), Path(folder) / f"{view}.pt")


def files(folder: str) -> dict[str, Path]:
    """Where the state and the links are written, if anywhere."""
    if not folder:
        return {}
    return {"checkpoint": Path(folder) / "job.safetensors", "links": Path(folder) / "links.csv"}


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate model on central data."""
    # Load the model and initialize it with the received weights
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    model.to(device)

    # Load entire test set
    test_dataloader = load_centralized_dataset()

    # Evaluate the global model on the test set
    test_loss, test_acc = test(model, test_dataloader, device)

    # Return the evaluation metrics
    return MetricRecord({"accuracy": test_acc, "loss": test_loss})
