"""scores, logs → tables and figures; a benchmark for a figure."""


rule table:
    input:
        scores=lambda w: table_scores(w.table),
        queries=lambda w: table_scores(w.table, paths.queries, CONFIG.retrieval_tasks),
        reported=lambda w: CONFIG.tables[w.table].reported or [],
    output:
        csv=report(
            "results/tables/{table}.csv",
            caption="../report/table.rst",
            category="Tables",
            labels={"table": "{table}"},
        ),
        md="results/tables/{table}.md",
        tex="results/tables/{table}.tex",
        significance=multiext("results/tables/{table}_significance", ".csv", ".md"),
    log:
        "results/logs/table/{table}.log",
    conda:
        "../../envs/environment.yaml"
    params:
        settings=lambda w: settings("tables", w.table),
        caption=lambda w: CONFIG.tables[w.table].caption,
        version=STAGE_VERSIONS["table"],
    shell:
        in_job(
            "revela table --settings {params.settings:q} --scores results/scores"
            " --output {output.csv:q}"
        )


rule compare:
    input:
        scores=lambda w: table_scores(w.table),
        reported=lambda w: CONFIG.tables[w.table].reported or [],
        notes=lambda w: CONFIG.tables[w.table].notes or [],
    output:
        csv="results/tables/{table}_vs_paper.csv",
        md="results/tables/{table}_vs_paper.md",
    log:
        "results/logs/compare/{table}.log",
    conda:
        "../../envs/environment.yaml"
    params:
        settings=lambda w: settings("tables", w.table),
        version=STAGE_VERSIONS["compare"],
    shell:
        in_job(
            "revela compare --settings {params.settings:q} --scores results/scores"
            " --output {output.csv:q}"
        )


rule verify:
    input:
        expand(
            "results/tables/{table}_vs_paper.csv",
            table=[name for name in COMPARED if name.startswith("verify_")],
        ),
    log:
        "results/logs/verify.log",
    conda:
        "../../envs/environment.yaml"
    shell:
        in_job("revela verify {input:q}")


rule figure:
    input:
        data=lambda w: inputs("figures", w.figure),
    output:
        png=report(
            "results/figures/{figure}.png",
            caption="../report/figure.rst",
            category="Figures",
            labels={"figure": "{figure}"},
        ),
        pdf="results/figures/{figure}.pdf",
    log:
        "results/logs/figure/{figure}.log",
    conda:
        "../../envs/environment.yaml"
    params:
        settings=lambda w: settings("figures", w.figure),
        inputs=lambda w: named("figures", w.figure),
        caption=lambda w: CONFIG.figures[w.figure].caption,
        version=STAGE_VERSIONS["figure"],
    shell:
        in_job(
            "revela figure --settings {params.settings:q} {params.inputs} --output {output.png:q}"
        )


rule listing:
    input:
        rows=lambda w: CONFIG.listings[w.listing].file,
        batches=lambda w: inputs("listings", w.listing),
    output:
        csv="results/tables/{listing}.csv",
        md="results/tables/{listing}.md",
        tex="results/tables/{listing}.tex",
    log:
        "results/logs/listing/{listing}.log",
    conda:
        "../../envs/environment.yaml"
    params:
        settings=lambda w: settings("listings", w.listing),
        inputs=lambda w: named("listings", w.listing),
        version=STAGE_VERSIONS["listing"],
    shell:
        in_job(
            "revela listing --settings {params.settings:q} {params.inputs} --output {output.csv:q}"
        )


rule step_cost:
    input:
        backbone=f"{ROOT}/data/backbones/5m/model.safetensors",
    output:
        "results/bench/{figure}.csv",
    log:
        "results/logs/bench/{figure}.log",
    conda:
        "../../envs/environment.yaml"
    threads: workflow.cores
    params:
        sizes=lambda w: CONFIG.figures[w.figure].sizes,
        version=STAGE_VERSIONS["step_cost"],
    shell:
        in_job(
            "$REVELA_PYTHON -m bench.training.step_cost --sizes {params.sizes} --output {output:q} 2>&1"
        )


rule usage:
    input:
        sorted(glob("results/models/*/manifest.json")),
    output:
        csv="results/tables/usage.csv",
        md="results/tables/usage.md",
    log:
        "results/logs/usage.log",
    conda:
        "../../envs/environment.yaml"
    params:
        paper=f"{ROOT}/data/paper/usage.csv",
        version=STAGE_VERSIONS["usage"],
    shell:
        in_job("revela usage results --paper {params.paper:q} --output {output.csv:q}")
