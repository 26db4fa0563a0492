//! The files beside the code are what the code says.

#[test]
fn generated_files_are_up_to_date() {
    for (name, want) in stepwatch_dashboards::generated().unwrap() {
        let path = stepwatch_dashboards::root().join(&name);
        let got = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(got == want, "{} is out of date: cargo run -p stepwatch-dashboards", path.display());
    }
}

#[test]
fn every_panel_asks_and_every_query_is_named() {
    for (_, board) in stepwatch_dashboards::all() {
        for chart in board.rows.iter().flat_map(|row| &row.charts) {
            assert!(!chart.question.is_empty() && !chart.queries.is_empty(), "{}", chart.title);
            for query in &chart.queries {
                assert!(!query.legend.is_empty(), "{}: {}", chart.title, query.expr);
            }
        }
    }
}
