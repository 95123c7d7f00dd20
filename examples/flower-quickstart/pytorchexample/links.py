"""Links that fail, so that a simulation shows something; a real app needs none of it."""

import random

from flwr.app import Context, Message


def is_down(partition_id: int, num_partitions: int, server_round: int, outage: float) -> bool:
    """Whether a client's link is down in a round: more often for clients with a low number."""
    share = min(1.0, 2 * outage * (1 - (partition_id + 0.5) / num_partitions))
    return random.Random(f"link {partition_id} {server_round}").random() < share


def outage_mod(message: Message, context: Context, call_next) -> Message:
    """A mod that cuts the link of a client in some rounds."""
    if message.metadata.message_type == "train":
        server_round = message.content["config"]["server-round"]
        partition_id = context.node_config["partition-id"]
        num_partitions = context.node_config["num-partitions"]
        if is_down(partition_id, num_partitions, server_round, context.run_config["outage"]):
            raise ConnectionError("the link is down")
    return call_next(message, context)
