"""batches, pairs → trained retriever.

Checkpoints are not declared as outputs, because Snakemake deletes the outputs of a failed job; a
training resumes from existing checkpoints.
"""


rule train:
    input:
        data=lambda w: CONFIG.inputs("experiments", w.experiment)["data"],
        all=lambda w: inputs("experiments", w.experiment),
    output:
        retriever=directory("results/models/{experiment}/retriever"),
        log="results/models/{experiment}/log.jsonl",
    log:
        "results/logs/train/{experiment}.log",
    conda:
        "../../envs/environment.yaml"
    threads: cores
    resources:
        nodes=1,
        zero=0,
        batches_per_forward=0,
        gradient_checkpointing="auto",
        loader_workers=2,
        checkpoint_minutes=15,
    params:
        settings=lambda w: settings("experiments", w.experiment),
        folder=subpath(output.log, parent=True),
        version=lambda w: version(
            "train", CONFIG.local_models("experiments", w.experiment)
        ),
    shell:
        in_job(
            "launch {resources.nodes} revela train --settings {params.settings:q} --data {input.data:q}"
            " --output {params.folder:q} --zero {resources.zero}"
            " --batches-per-forward {resources.batches_per_forward}"
            " --loader-workers {resources.loader_workers}"
            " --checkpoint-minutes {resources.checkpoint_minutes}"
            " $(case {resources.gradient_checkpointing} in [tT]*) echo --gradient-checkpointing;;"
            " [fF]*) echo --no-gradient-checkpointing;; esac)"
        )
