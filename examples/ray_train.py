"""Trains one run in several processes that Ray starts, on this machine or on a cluster.

python examples/ray_train.py 2 1 translate --prepared /shared/corpus --run-dir /shared/runs/ray

starts two processes with one GPU each (0: on the CPU); what follows is a command of `keras-tnattn`.
"""

import socket
import sys

import ray


@ray.remote
class Process:
    """A process that trains its share of every batch."""

    def address(self):
        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def train(self, command):
        from keras_tnattn_train.cli import main

        try:
            status = main(command)
        except SystemExit as end:  # of every process but the first
            status = end.code
        if status:
            raise RuntimeError(f"{command} ended with status {status}")


def main(processes, gpus, *command):
    ray.init(runtime_env={"env_vars": {"KERAS_BACKEND": "jax"}})
    workers = [Process.options(num_gpus=int(gpus)).remote() for _ in range(int(processes))]
    group = ["--coordinator", ray.get(workers[0].address.remote()), "--num-processes", processes]
    running = [
        worker.train.remote([*command, *group, "--process-id", str(number)])
        for number, worker in enumerate(workers)
    ]
    while running:
        ended, running = ray.wait(running)
        ray.get(ended)  # raises what one of them raised; the end of this process ends the others


if __name__ == "__main__":
    main(*sys.argv[1:])
