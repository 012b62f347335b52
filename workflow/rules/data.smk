"""corpus → chunks → batches, pairs."""


rule chunk:
    input:
        code=["revela/chunking.py", "revela/corpora.py"],
    output:
        "results/chunks/{corpus}.parquet",
    log:
        "results/logs/chunk/{corpus}.log",
    threads: workflow.cores
    params:
        settings=lambda w: CONFIG.corpora[w.corpus].dump(),
    conda:
        "../../envs/train.yaml"
    shell:
        "python -m revela chunk --settings {params.settings:q} --output {output:q}"
        " --workers {threads} 2>&1 | tee -i {log:q}"


rule batch:
    input:
        data=lambda w: list(chunks_of(CONFIG.batches[w.batches]).values()),
        code="revela/batching.py",
    output:
        "results/batches/{batches}.parquet",
    log:
        "results/logs/batch/{batches}.log",
    params:
        settings=lambda w: CONFIG.batches[w.batches].dump(),
        inputs=lambda w: named(chunks_of(CONFIG.batches[w.batches])),
    conda:
        "../../envs/train.yaml"
    shell:
        "python -m revela batch --settings {params.settings:q} {params.inputs}"
        " --output {output:q} 2>&1 | tee -i {log:q}"


rule pair:
    input:
        data=lambda w: list(chunks_of(CONFIG.pairs[w.pairs]).values()),
        code="revela/pairs.py",
    output:
        "results/pairs/{pairs}.parquet",
    log:
        "results/logs/pair/{pairs}.log",
    params:
        settings=lambda w: CONFIG.pairs[w.pairs].dump(),
        inputs=lambda w: named(chunks_of(CONFIG.pairs[w.pairs])),
    conda:
        "../../envs/train.yaml"
    shell:
        "python -m revela pair --settings {params.settings:q} {params.inputs}"
        " --output {output:q} 2>&1 | tee -i {log:q}"
