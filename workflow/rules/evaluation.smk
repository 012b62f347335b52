"""retriever, tasks → scores and runs; language model, task → scores.

The shards of embeddings are not declared as outputs, so that an interrupted evaluation resumes from
those that exist.
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


# A rule for jobs of one task, and one for each group of tasks that a job evaluates. Snakemake removes
# all outputs of a job before it starts; the cache gives those back for which nothing has changed.
for rule_name, models, tasks in [
    ("evaluate", set(CONFIG.evaluated) - set(CONFIG.hybrids), ["{task}"]),
    *evaluated_together(),
]:

    rule:
        name:
            rule_name
        input:
            model=lambda w: inputs("models", w.model),
            collections=lambda w, tasks=tasks: [
                file for task in named_by(w, tasks) for file in collection(task)
            ],
        output:
            scores=expand("results/scores/{{model}}/{task}.json", task=tasks),
            queries=expand("results/scores/{{model}}/{task}.queries.csv", task=tasks),
            run=expand("results/runs/{{model}}/{task}.trec", task=tasks),
            mteb=directory(expand("results/mteb/{{model}}/{task}", task=tasks)),
        log:
            f"results/logs/evaluate/{{model}}.{tasks[0]}.log",
        wildcard_constraints:
            model=one_of(models),
            task=one_of(CONFIG.retrieval_tasks),
        conda:
            "../../envs/environment.yaml"
        threads: cores
        params:
            model=lambda w: settings("models", w.model),
            tasks=lambda w, tasks=tasks: task_options(named_by(w, tasks)),
            cache="results/shards/{model}",
            version=lambda w, tasks=tasks: version(
                "evaluate",
                CONFIG.local_models("models", w.model),
                [file for task in named_by(w, tasks) for file in brought(task)],
            ),
        shell:
            in_job(
                "revela evaluate --name {wildcards.model:q} --model {params.model:q}"
                " {params.tasks} --cache {params.cache:q}"
                " --scores results/scores/{wildcards.model:q}/{{task}}.json"
                " --queries results/scores/{wildcards.model:q}/{{task}}.queries.csv"
                " --run results/runs/{wildcards.model:q}/{{task}}.trec"
                " --mteb results/mteb/{wildcards.model:q}/{{task}}"
            )

    if rule_name != "evaluate":
        as_evaluate(rule_name)


rule judgements:
    input:
        lambda w: collection(w.task),
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
        collection=lambda w: collection(w.task),
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
