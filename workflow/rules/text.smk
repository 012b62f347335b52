"""corpus → chunks → batches, pairs.

The code is no input of these rules: trainings stand behind them, and a harmless change must not
throw hours of work away. The manifests record the commit."""


rule chunk:
    input:
        lambda w: corpus_files(w.corpus),
    output:
        "results/chunks/{corpus}.parquet",
    log:
        "results/logs/chunk/{corpus}.log",
    conda:
        "../../envs/train.yaml"
    threads: workflow.cores
    params:
        settings=lambda w: settings("corpora", w.corpus),
    shell:
        "python -m revela chunk --settings {params.settings:q} --output {output:q}"
        " --workers {threads} 2>&1 | record {log:q}"


rule batch:
    input:
        lambda w: batch_files(w.batches),
    output:
        "results/batches/{batches}.parquet",
    log:
        "results/logs/batch/{batches}.log",
    conda:
        "../../envs/train.yaml"
    params:
        settings=lambda w: settings("batches", w.batches),
        inputs=lambda w: named("batches", w.batches),
    shell:
        "python -m revela batch --settings {params.settings:q} {params.inputs}"
        " --output {output:q} 2>&1 | record {log:q}"


rule pair:
    input:
        lambda w: inputs("pairs", w.pairs),
    output:
        "results/pairs/{pairs}.parquet",
    log:
        "results/logs/pair/{pairs}.log",
    conda:
        "../../envs/train.yaml"
    params:
        settings=lambda w: settings("pairs", w.pairs),
        inputs=lambda w: named("pairs", w.pairs),
    shell:
        "python -m revela pair --settings {params.settings:q} {params.inputs}"
        " --output {output:q} 2>&1 | record {log:q}"
