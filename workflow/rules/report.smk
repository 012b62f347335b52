"""scores, logs → tables and figures; a bench that is drawn."""


rule table:
    input:
        scores=lambda w: table_scores(w.table),
        queries=lambda w: table_queries(w.table),
        reported=lambda w: reported_file(w.table),
        code=[
            "revela/report/tables.py",
            "revela/report/reported.py",
            "revela/report/significance.py",
            "revela/report/render.py",
        ],
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
        "../../envs/evaluate.yaml"
    params:
        settings=lambda w: settings("tables", w.table),
        caption=lambda w: CONFIG.tables[w.table].caption,
    shell:
        "python -m revela table --settings {params.settings:q} --scores results/scores"
        " --output {output.csv:q} 2>&1 | record {log:q}"


rule compare:
    input:
        scores=lambda w: table_scores(w.table),
        reported=lambda w: reported_file(w.table),
        code=[
            "revela/report/tables.py",
            "revela/report/reported.py",
            "revela/report/render.py",
        ],
    output:
        csv="results/tables/{table}_vs_paper.csv",
        md="results/tables/{table}_vs_paper.md",
    log:
        "results/logs/compare/{table}.log",
    conda:
        "../../envs/evaluate.yaml"
    params:
        settings=lambda w: settings("tables", w.table),
    shell:
        "python -m revela compare --settings {params.settings:q} --scores results/scores"
        " --output {output.csv:q} 2>&1 | record {log:q}"


rule verify:
    input:
        expand(
            "results/tables/{table}_vs_paper.csv",
            table=[name for name in COMPARED if name.startswith("verify_")],
        ),
    log:
        "results/logs/verify.log",
    conda:
        "../../envs/evaluate.yaml"
    shell:
        "python -m revela verify {input:q} 2>&1 | record {log:q}"


rule figure:
    input:
        data=lambda w: inputs("figures", w.figure),
        code=[
            "revela/report/style.py",
            "revela/report/table_figures.py",
            "revela/report/training_figures.py",
            "revela/report/dynamics_figure.py",
        ],
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
        "../../envs/evaluate.yaml"
    params:
        settings=lambda w: settings("figures", w.figure),
        inputs=lambda w: named("figures", w.figure),
        caption=lambda w: CONFIG.figures[w.figure].caption,
    shell:
        "python -m revela figure --settings {params.settings:q} {params.inputs}"
        " --output {output.png:q} 2>&1 | record {log:q}"


rule listing:
    input:
        rows=lambda w: CONFIG.listings[w.listing].file,
        code=["revela/report/listings.py", "revela/report/render.py"],
    output:
        csv="results/tables/{listing}.csv",
        md="results/tables/{listing}.md",
        tex="results/tables/{listing}.tex",
    log:
        "results/logs/listing/{listing}.log",
    conda:
        "../../envs/evaluate.yaml"
    params:
        settings=lambda w: settings("listings", w.listing),
    shell:
        "python -m revela listing --settings {params.settings:q}"
        " --output {output.csv:q} 2>&1 | record {log:q}"


rule step_cost:
    input:
        backbone="data/backbone/model.safetensors",
        code="bench/training/step_cost.py",
    output:
        "results/bench/{figure}.csv",
    log:
        "results/logs/bench/{figure}.log",
    conda:
        "../../envs/train.yaml"
    threads: workflow.cores
    params:
        sizes=lambda w: CONFIG.figures[w.figure].sizes,
    shell:
        "python -m bench.training.step_cost --sizes {params.sizes} --output {output:q} 2>&1 | record {log:q}"


rule usage:
    input:
        manifests(),
    output:
        csv="results/tables/usage.csv",
        md="results/tables/usage.md",
    log:
        "results/logs/usage.log",
    conda:
        "../../envs/evaluate.yaml"
    params:
        paper=f"{workflow.basedir}/data/paper/gpu_hours.csv",
    shell:
        "python -m revela usage results --paper {params.paper:q}"
        " --output {output.csv:q} 2>&1 | record {log:q}"
