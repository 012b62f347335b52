"""Revela, from raw text to tables: the targets, and the files with the rules.

snakemake --cores 2 --configfile config.demo.yaml --replace-workflow-config all
snakemake --cores 8 results/tables/coir.csv
"""


include: "workflow/rules/common.smk"


# The first rule, and so the default, unless another workflow uses this one as a module.
rule all:
    input:
        expand("results/tables/{table}.csv", table=CONFIG.tables),
        expand("results/tables/{table}_vs_paper.csv", table=COMPARED),
        expand("results/tables/{listing}.csv", listing=CONFIG.listings),
        expand("results/figures/{figure}.png", figure=CONFIG.figures),


include: "workflow/rules/text.smk"
include: "workflow/rules/training.smk"
include: "workflow/rules/evaluation.smk"
include: "workflow/rules/report.smk"


# These take seconds, not worth a cluster job, except `download`, which needs the internet.
localrules:
    all,
    download,
    usage,
    collection,
    table,
    compare,
    verify,
    figure,
    listing,


onstart:
    retry_together()
    if workflow.is_main_process and workflow.local_exec:
        signal.signal(signal.SIGTERM, stop_jobs)


onerror:
    name_failed()
