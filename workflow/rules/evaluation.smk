"""retriever, task → scores and run; language model, task → scores.

Embeddings are no declared outputs: what an interrupted evaluation leaves is used by the next.
"""


rule pydocs:
    input:
        code="revela/evaluation/pydocs.py",
    output:
        directory("results/benchmarks/{benchmark}/{task}"),
    log:
        "results/logs/pydocs/{benchmark}.{task}.log",
    conda:
        "../../envs/evaluate.yaml"
    params:
        settings=lambda w: settings("tasks", w.task),
    shell:
        "python -m revela pydocs --settings {params.settings:q} {wildcards.task:q}"
        " --output {output:q} 2>&1 | record {log:q}"


rule evaluate:
    input:
        model=lambda w: inputs("models", w.model),
        collection=lambda w: collection(w.task),
        code=[
            "revela/evaluation/benchmarks.py",
            "revela/evaluation/bm25.py",
            "revela/evaluation/embeddings.py",
            "revela/encoder.py",
            "revela/evaluation/lucene.py",
            "revela/evaluation/measure.py",
            "revela/evaluation/search.py",
        ],
    output:
        scores="results/scores/{model}/{task}.json",
        queries="results/scores/{model}/{task}.queries.csv",
        run="results/runs/{model}/{task}.trec",
    log:
        "results/logs/evaluate/{model}.{task}.log",
    wildcard_constraints:
        task=one_of(CONFIG.retrieval_tasks),
    conda:
        "../../envs/evaluate.yaml"
    threads: 1
    params:
        model=lambda w: settings("models", w.model),
        benchmark=lambda w: settings("tasks", w.task),
        folder=lambda w: folder_option(w.task),
        cache="results/embeddings/{model}/{task}",
    shell:
        "OMP_NUM_THREADS={threads} python -m revela evaluate {wildcards.task:q} --name {wildcards.model:q}"
        " --model {params.model:q} --benchmark {params.benchmark:q} {params.folder}"
        " --cache {params.cache:q} --scores {output.scores:q} --run {output.run:q} 2>&1 | record {log:q}"


rule evaluate_language_model:
    input:
        model=lambda w: inputs("models", w.model),
        code="revela/evaluation/lm_eval.py",
    output:
        "results/scores/{model}/{task}.json",
    log:
        "results/logs/evaluate_language_model/{model}.{task}.log",
    wildcard_constraints:
        task=one_of(set(CONFIG.tasks) - set(CONFIG.retrieval_tasks)),
    conda:
        "../../envs/evaluate.yaml"
    threads: 1
    params:
        model=lambda w: settings("models", w.model),
        benchmark=lambda w: settings("tasks", w.task),
    shell:
        "OMP_NUM_THREADS={threads} python -m revela evaluate-lm {wildcards.task:q}"
        " --name {wildcards.model:q} --model {params.model:q}"
        " --benchmark {params.benchmark:q} --scores {output:q} 2>&1 | record {log:q}"
