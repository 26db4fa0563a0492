//! What the boards have in common above their panels: variables, links and marks.

use crate::model::{Annotation, Choice, DashboardLink, PICKED, QueryVariable, Variable};

/// Every one of our dashboards has it, so that each finds the others.
pub(crate) const TAG: &str = "stepwatch";

/// The page of a node in the alerter, from a board that has `$node`.
pub(crate) const NODE_PAGE: &str = "${alerter_url}/nodes/${node:percentencode}";
/// The same from a row of a table with a column `node`.
pub(crate) const NODE_PAGE_OF_ROW: &str = "${alerter_url}/nodes/${__data.fields.node:percentencode}";
/// The page of a run in the alerter, from a board that has `$run`.
pub(crate) const RUN_PAGE: &str = "${alerter_url}/runs/${run:percentencode}";
/// The same from a row of a table with a column `run`.
pub(crate) const RUN_PAGE_OF_ROW: &str = "${alerter_url}/runs/${__data.fields.run:percentencode}";
/// The list of incidents in the alerter.
pub(crate) const INCIDENTS_PAGE: &str = "${alerter_url}/";
/// The dashboard of the node of a row, in the clusters that are chosen: a row has no column
/// `cluster` where the label is absent.
pub(crate) const NODE_BOARD_OF_ROW: &str = "/d/stepwatch-node?${datasource:queryparam}&${cluster:queryparam}&var-instance=${__data.fields.instance:percentencode}&${__url_time_range}";
/// The dashboard of the run of a row.
pub(crate) const RUN_BOARD_OF_ROW: &str = "/d/stepwatch-training?${datasource:queryparam}&${cluster:queryparam}&var-run=${__data.fields.run:percentencode}&${__url_time_range}";

const EVERYTHING: Choice = Choice { text: "All", value: "$__all" };

const BLANK: QueryVariable = QueryVariable {
    name: "",
    label: "",
    datasource: PICKED,
    query: "",
    hide: 0,
    regex: "",
    refresh: 2,
    sort: 1,
    multi: false,
    include_all: false,
    all_value: "",
    current: None,
};

/// Which Prometheus is asked, which cluster, and where the alerter's pages are: the first variables
/// of every board. A Prometheus of one cluster usually has no label `cluster`: all is also what
/// lacks the label.
pub(crate) fn first(clusters: &'static str) -> Vec<Variable> {
    let alerter = "http://alerter:9766";
    vec![
        Variable::Datasource { name: "datasource", label: "Data source", query: "prometheus", refresh: 1 },
        Variable::Query(QueryVariable {
            name: "cluster",
            label: "Cluster",
            query: clusters,
            multi: true,
            include_all: true,
            all_value: ".*",
            current: Some(EVERYTHING),
            ..BLANK
        }),
        Variable::Textbox {
            name: "alerter_url",
            label: "Alerter",
            query: alerter,
            current: Choice { text: alerter, value: alerter },
        },
    ]
}

/// The head of a board about many nodes: all of them unless the reader picks.
pub(crate) fn of_fleet() -> Vec<Variable> {
    let mut all = first("label_values(stepwatch_exporter_build_info, cluster)");
    all.push(many("job", "Job", r#"label_values(stepwatch_exporter_build_info{cluster=~"$cluster"}, job)"#));
    all.push(many(
        "instance",
        "Instance",
        r#"label_values(stepwatch_exporter_build_info{cluster=~"$cluster", job=~"$job"}, instance)"#,
    ));
    all
}

/// The head of a board about one node or a few: never all, which could be thousands of lines.
pub(crate) fn of_nodes() -> Vec<Variable> {
    let mut all = of_fleet();
    all.pop();
    all.push(Variable::Query(QueryVariable {
        name: "instance",
        label: "Instance",
        query: r#"label_values(stepwatch_exporter_build_info{cluster=~"$cluster", job=~"$job"}, instance)"#,
        multi: true,
        all_value: ".+",
        ..BLANK
    }));
    // The alerter calls a node by its host name, without the port.
    all.push(Variable::Query(QueryVariable {
        name: "node",
        label: "Node",
        query: r#"label_values(stepwatch_exporter_build_info{cluster=~"$cluster", job=~"$job", instance=~"$instance"}, instance)"#,
        hide: 2,
        regex: "/^([^:]+)/",
        ..BLANK
    }));
    all
}

/// The head of a board about the alerter.
pub(crate) fn of_alerter() -> Vec<Variable> {
    let mut all = first("label_values(stepwatch_alerter_build_info, cluster)");
    all.push(many("job", "Job", r#"label_values(stepwatch_alerter_build_info{cluster=~"$cluster"}, job)"#));
    all.push(many(
        "instance",
        "Instance",
        r#"label_values(stepwatch_alerter_build_info{cluster=~"$cluster", job=~"$job"}, instance)"#,
    ));
    all
}

/// Any number of what a query finds, at first all of it.
pub(crate) fn many(name: &'static str, label: &'static str, query: &'static str) -> Variable {
    Variable::Query(QueryVariable {
        name,
        label,
        query,
        multi: true,
        include_all: true,
        all_value: ".+",
        current: Some(EVERYTHING),
        ..BLANK
    })
}

/// One of what a query finds.
pub(crate) fn one(name: &'static str, label: &'static str, query: &'static str) -> Variable {
    Variable::Query(QueryVariable { name, label, query, ..BLANK })
}

/// From each board to the others, and to the alerter.
pub(crate) fn links() -> Vec<DashboardLink> {
    let link = DashboardLink {
        title: "Incidents",
        kind: "link",
        icon: "external link",
        tooltip: "The incidents of the alerter",
        url: INCIDENTS_PAGE,
        tags: Vec::new(),
        as_dropdown: false,
        include_vars: false,
        keep_time: false,
        target_blank: true,
    };
    let dashboards = DashboardLink {
        title: "Stepwatch",
        kind: "dashboards",
        icon: "external link",
        tooltip: "",
        url: "",
        tags: vec![TAG],
        as_dropdown: true,
        include_vars: true,
        keep_time: true,
        target_blank: false,
    };
    vec![dashboards, link]
}

/// A mark in every chart where the query has a value.
pub(crate) fn mark(
    name: &'static str,
    icon_color: &'static str,
    expr: impl Into<String>,
    text_format: &'static str,
) -> Annotation {
    Annotation {
        name,
        enable: true,
        icon_color,
        datasource: PICKED,
        expr: expr.into(),
        step: "60s",
        title_format: name,
        text_format,
    }
}

/// Where an incident opened that somebody is notified of. The alerter's metrics have its kind, not
/// its run or node: the mark is in every board, and the alerter's page says whose it is. The
/// counter of a kind begins with its first incident, which a rate does not see: a series that was
/// not there a minute ago counts, if the alerter was.
pub(crate) fn incidents() -> Annotation {
    let opened = r#"stepwatch_alerter_incidents_opened_total{cluster=~"$cluster", severity=~"page|ticket"}"#;
    mark(
        "Incident",
        "purple",
        format!(
            "max by (cluster, kind, severity) (increase({opened}[1m]) > 0 or ({opened} unless {opened} offset 1m) \
             and on (cluster, job, instance) stepwatch_alerter_build_info{{cluster=~\"$cluster\"}} offset 1m)"
        ),
        "{{severity}}: {{kind}}",
    )
}
