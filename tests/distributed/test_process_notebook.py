"""A notebook's kernel trains on forked ranks: what its cells define comes back, and its interrupt button works."""

from __future__ import annotations

from pathlib import Path

from tests.distributed.ranks import program

# Jupyter's client keeps sockets and an event loop open, so it has a process of its own.
NOTEBOOK = '''
    import threading
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")

    def cell(code):
        shown = []

        def show(message):
            content = message["content"]
            shown.append(content.get("text", "") + content.get("ename", ""))
            if "press the button" in shown[-1]:
                threading.Thread(target=manager.interrupt_kernel).start()

        reply = client.execute_interactive(code, timeout=40, output_hook=show)
        return reply["content"]["status"], "".join(shown)

    print(cell("""
    import logging, signal, time, turnout
    from turnout import DataParallelTrainer, RunConfig, ScalingConfig
    logging.basicConfig(level="WARNING")
    handler = signal.getsignal(signal.SIGINT)

    class Model:
        pass

    def fit(train):
        return DataParallelTrainer(
            train, scaling_config=ScalingConfig(2, controller="process"), run_config=RunConfig(storage_path="runs")
        ).fit()

    def train():
        print("a line")
        return Model()
    """))
    print("second cell:", cell("print([type(each) is Model for each in fit(train).return_values])"))
    status, shown = cell("""
    def train_for_ever():
        print("press the button" if turnout.get_context().get_world_rank() == 0 else "")
        while True:
            turnout.report({"at": time.time()})
            time.sleep(0.01)

    fit(train_for_ever)
    """)
    print("third cell:", status, shown.splitlines()[-1])
    print("fourth cell:", cell("print(signal.getsignal(signal.SIGINT) is handler, len(fit(train).return_values))"))
    client.stop_channels()
    manager.shutdown_kernel(now=False)
'''


def test_a_notebook_trains_is_interrupted_and_trains_again(tmp_path: Path) -> None:
    names = ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")
    with program(tmp_path, NOTEBOOK, env={name: str(tmp_path / name) for name in names}) as driver:
        assert driver.wait(50) == 0, driver.text
        text = driver.text
        assert "[True, True]\\n" in text.partition("second cell: ('ok'")[2], text
        assert "third cell: error KeyboardInterrupt\n" in text
        assert "True 2\\n" in text.partition("fourth cell: ('ok'")[2]
        assert not driver.alive()
