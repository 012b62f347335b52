"""scores, logs → tables and figures."""


rule table:
    input:
        scores=lambda w: table_scores(w.table),
        reported=lambda w: [
            row.reported.file for row in CONFIG.tables[w.table].rows if row.reported
        ],
        code="revela/tables.py",
    output:
        report(
            "results/tables/{table}.csv",
            caption="../report/table.rst",
            category="Tables",
            labels={"table": "{table}"},
        ),
        "results/tables/{table}.md",
        "results/tables/{table}.tex",
    log:
        "results/logs/table/{table}.log",
    params:
        settings=lambda w: CONFIG.tables[w.table].dump(),
        benchmark=lambda w: CONFIG.benchmarks[CONFIG.tables[w.table].benchmark].dump(),
        caption=lambda w: CONFIG.tables[w.table].caption,
    shell:
        "revela table --settings {params.settings:q} --benchmark {params.benchmark:q}"
        " --scores results/scores --output {output[0]:q} 2>&1 | tee {log:q}"


rule figure:
    input:
        logs=lambda w: list(figure_logs(w.figure).values()),
        code="revela/figures.py",
    output:
        report(
            "results/figures/{figure}.png",
            caption="../report/figure.rst",
            category="Figures",
            labels={"figure": "{figure}"},
        ),
        "results/figures/{figure}.pdf",
    log:
        "results/logs/figure/{figure}.log",
    params:
        settings=lambda w: CONFIG.figures[w.figure].dump(),
        inputs=lambda w: named(figure_logs(w.figure)),
        caption=lambda w: CONFIG.figures[w.figure].caption,
    shell:
        "revela figure --settings {params.settings:q} {params.inputs}"
        " --output {output[0]:q} 2>&1 | tee {log:q}"
