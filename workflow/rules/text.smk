"""hub → corpus → chunks → batches, pairs.

`version`, here and in all rules, makes results stale when the code produces different ones. The
code itself is not an input: a harmless change must not discard hours of work.
"""


# The only rule of this file that needs the internet: a local one, so that it runs on the login node of
# a cluster. The files are in the hub's cache; its output lists them.
rule download:
    output:
        "results/downloads/{section}/{name}.json",
    log:
        "results/logs/download/{section}.{name}.log",
    wildcard_constraints:
        section="corpora|batches",
        name=one_of([*CONFIG.corpora, *CONFIG.batches]),
    conda:
        "../../envs/environment.yaml"
    params:
        settings=lambda w: getattr(CONFIG, w.section)[w.name].hub_files.dump(),
        version=STAGE_VERSIONS["download"],
    shell:
        in_job("revela download --settings {params.settings:q} --output {output:q}")


rule chunk:
    input:
        lambda w: corpus_files(CONFIG.corpora[w.corpus]),
        lambda w: inputs("corpora", w.corpus),
    output:
        "results/chunks/{corpus}.parquet",
    log:
        "results/logs/chunk/{corpus}.log",
    conda:
        "../../envs/environment.yaml"
    threads: workflow.cores
    params:
        settings=lambda w: settings("corpora", w.corpus),
        inputs=lambda w: named("corpora", w.corpus),
        version=lambda w: version("chunk", files=corpus_files(CONFIG.corpora[w.corpus])),
    shell:
        in_job(
            "revela chunk --settings {params.settings:q} {params.inputs} --output {output:q}"
            " --workers {threads}"
        )


rule batch:
    input:
        lambda w: inputs("batches", w.batches),
        lambda w: ready_made(w.batches),
    output:
        "results/batches/{batches}.parquet",
    log:
        "results/logs/batch/{batches}.log",
    conda:
        "../../envs/environment.yaml"
    params:
        settings=lambda w: settings("batches", w.batches),
        inputs=lambda w: named("batches", w.batches),
        version=lambda w: version("batch", files=ready_made(w.batches)),
    shell:
        in_job(
            "revela batch --settings {params.settings:q} {params.inputs} --output {output:q}"
        )


rule pair:
    input:
        lambda w: inputs("pairs", w.pairs),
    output:
        "results/pairs/{pairs}.parquet",
    log:
        "results/logs/pair/{pairs}.log",
    conda:
        "../../envs/environment.yaml"
    params:
        settings=lambda w: settings("pairs", w.pairs),
        inputs=lambda w: named("pairs", w.pairs),
        version=STAGE_VERSIONS["pair"],
    shell:
        in_job(
            "revela pair --settings {params.settings:q} {params.inputs} --output {output:q}"
        )
