"""An offline rehearsal of the paper's whole plan: every job of `config.yaml`, in miniature."""
