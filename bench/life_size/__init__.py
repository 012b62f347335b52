"""The paper's steps at their real sizes, without a hub: `python -m bench.life_size`."""
