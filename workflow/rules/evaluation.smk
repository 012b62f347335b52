"""retriever, task → scores and run; language model, task → scores.

The shards of embeddings are not declared as outputs, so that an interrupted evaluation resumes from
those that exist. Once complete they are a temporary output for tasks that share a corpus.
"""


rule collection:
    input:
        lambda w: inputs("benchmarks", w.benchmark),
    output:
        directory("results/benchmarks/{benchmark}/{task}"),
    log:
        "results/logs/collection/{benchmark}.{task}.log",
    conda:
        "../../envs/environment.yaml"
    params:
        settings=lambda w: settings("tasks", w.task),
        inputs=lambda w: named("benchmarks", w.benchmark),
        version=STAGE_VERSIONS["collection"],
    shell:
        in_job(
            "revela collection --settings {params.settings:q} {wildcards.task:q} {params.inputs}"
            " --output {output:q}"
        )


rule evaluate:
    input:
        model=lambda w: inputs("models", w.model),
        collection=lambda w: brought(w.task) or CONFIG.collection(w.task) or [],
        similar=lambda w: similar(w.model, w.task),
    output:
        embeddings=temp(directory("results/embeddings/{model}/{task}")),
        scores="results/scores/{model}/{task}.json",
        queries="results/scores/{model}/{task}.queries.csv",
        run="results/runs/{model}/{task}.trec",
        mteb=directory("results/mteb/{model}/{task}"),
    log:
        "results/logs/evaluate/{model}.{task}.log",
    wildcard_constraints:
        model=one_of(set(CONFIG.evaluated) - set(CONFIG.hybrids)),
        task=one_of(CONFIG.retrieval_tasks),
    conda:
        "../../envs/environment.yaml"
    threads: cores
    params:
        model=lambda w: settings("models", w.model),
        benchmark=lambda w: settings("tasks", w.task),
        folder=lambda w: folder_option(w.task),
        cache="results/shards/{model}/{task}",
        sharing=lambda w: sharing_options(w.model, w.task),
        version=lambda w: version(
            "evaluate", CONFIG.local_models("models", w.model), brought(w.task)
        ),
    shell:
        in_job(
            "revela evaluate {wildcards.task:q} --name {wildcards.model:q} --model {params.model:q}"
            " --benchmark {params.benchmark:q} {params.folder} --cache {params.cache:q}"
            " --scores {output.scores:q} --queries {output.queries:q} --run {output.run:q}"
            " --mteb {output.mteb:q}"
            " {params.sharing}"
        )
        + " && mkdir -p {output.embeddings:q}"


rule judgements:
    input:
        lambda w: brought(w.task) or CONFIG.collection(w.task) or [],
    output:
        "results/judgements/{task}.json",
    log:
        "results/logs/judgements/{task}.log",
    wildcard_constraints:
        task=one_of(CONFIG.retrieval_tasks),
    conda:
        "../../envs/environment.yaml"
    params:
        benchmark=lambda w: settings("tasks", w.task),
        folder=lambda w: folder_option(w.task),
        cache="results/shards/judgements/{task}",
        version=lambda w: version("judgements", files=brought(w.task)),
    shell:
        in_job(
            "revela judgements {wildcards.task:q} --benchmark {params.benchmark:q} {params.folder}"
            " --cache {params.cache:q} --output {output:q}"
        )


rule fuse:
    input:
        made=lambda w: list(CONFIG.fused(w.model, w.task).values()),
        collection=lambda w: brought(w.task) or CONFIG.collection(w.task) or [],
    output:
        scores="results/scores/{model}/{task}.json",
        queries="results/scores/{model}/{task}.queries.csv",
        run="results/runs/{model}/{task}.trec",
        mteb=directory("results/mteb/{model}/{task}"),
    log:
        "results/logs/fuse/{model}.{task}.log",
    wildcard_constraints:
        model=one_of(CONFIG.hybrids),
        task=one_of(CONFIG.retrieval_tasks),
    conda:
        "../../envs/environment.yaml"
    params:
        model=lambda w: settings("models", w.model),
        benchmark=lambda w: settings("tasks", w.task),
        folder=lambda w: folder_option(w.task),
        cache="results/shards/{model}/{task}",
        inputs=lambda w: input_options(CONFIG.fused(w.model, w.task)),
        version=lambda w: version("fuse", files=brought(w.task)),
    shell:
        in_job(
            "revela fuse {wildcards.task:q} --name {wildcards.model:q} --model {params.model:q}"
            " --benchmark {params.benchmark:q} {params.folder} --cache {params.cache:q}"
            " {params.inputs}"
            " --scores {output.scores:q} --queries {output.queries:q} --run {output.run:q}"
            " --mteb {output.mteb:q}"
        )


rule evaluate_language_model:
    input:
        model=lambda w: inputs("models", w.model),
    output:
        "results/scores/{model}/{task}.json",
    log:
        "results/logs/evaluate_language_model/{model}.{task}.log",
    wildcard_constraints:
        task=one_of(set(CONFIG.tasks) - set(CONFIG.retrieval_tasks)),
    conda:
        "../../envs/environment.yaml"
    threads: cores
    params:
        model=lambda w: settings("models", w.model),
        benchmark=lambda w: settings("tasks", w.task),
        version=lambda w: version("evaluate_lm", CONFIG.local_models("models", w.model)),
    shell:
        in_job(
            "revela evaluate-lm {wildcards.task:q} --name {wildcards.model:q} --model {params.model:q}"
            " --benchmark {params.benchmark:q} --scores {output:q}"
        )
