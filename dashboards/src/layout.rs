//! What a dashboard is to the person who writes one: rows of panels, each a question and its
//! queries.

use std::collections::BTreeMap;

use crate::head;
use crate::model::{
    Annotation, Color, Custom, Dashboard, DataLink, FieldConfig, FieldDefaults, GridPos, HeatmapAxis,
    HeatmapColor, HeatmapOptions, Legend, Listed, Mapping, Options, Organize, PICKED, Panel, PanelKind,
    Reduce, Scale, Shown, Stacking, StatOptions, StateTimelineOptions, Target, Threshold, Thresholds,
    TimeRange, Tooltip, Transformation, Unit, Variable,
};

/// Columns of Grafana's grid.
const COLUMNS: u32 = 24;
const SCHEMA_VERSION: u32 = 39;

#[derive(Debug)]
pub struct Board {
    pub uid: &'static str,
    pub title: &'static str,
    pub description: &'static str,
    pub variables: fn() -> Vec<Variable>,
    pub annotations: fn() -> Vec<Annotation>,
    pub rows: Vec<Row>,
}

#[derive(Debug)]
pub struct Row {
    pub title: &'static str,
    /// Whether the row is closed until somebody opens it: its queries are not asked before.
    pub folded: bool,
    pub charts: Vec<Chart>,
}

impl Row {
    pub fn open(title: &'static str, charts: Vec<Chart>) -> Self {
        Self { title, folded: false, charts }
    }

    pub fn folded(title: &'static str, charts: Vec<Chart>) -> Self {
        Self { title, folded: true, charts }
    }
}

/// One panel.
#[derive(Debug)]
pub struct Chart {
    pub title: &'static str,
    pub question: &'static str,
    pub queries: Vec<Query>,
    kind: PanelKind,
    unit: Unit,
    width: u32,
    log: bool,
    stacked: bool,
    bars: bool,
    min: Option<f64>,
    max: Option<f64>,
    thresholds: Vec<(f64, &'static str)>,
    words: Vec<(f64, &'static str, &'static str)>,
    links: Vec<DataLink>,
    /// Whether a table shows labels alone: the value is always the same.
    facts: bool,
}

#[derive(Debug, Clone)]
pub struct Query {
    pub expr: String,
    pub legend: &'static str,
}

/// The legend names of each series; `{{label}}` stands for its value.
pub fn query(expr: impl Into<String>, legend: &'static str) -> Query {
    Query { expr: expr.into(), legend }
}

impl Chart {
    fn new(kind: PanelKind, title: &'static str, question: &'static str, unit: Unit, width: u32) -> Self {
        Self {
            title,
            question,
            queries: Vec::new(),
            kind,
            unit,
            width,
            log: false,
            stacked: false,
            bars: false,
            min: None,
            max: None,
            thresholds: Vec::new(),
            words: Vec::new(),
            links: Vec::new(),
            facts: false,
        }
    }

    /// Lines over time, half of the width.
    pub fn lines(title: &'static str, question: &'static str, unit: Unit) -> Self {
        Self::new(PanelKind::Timeseries, title, question, unit, 12)
    }

    /// One number, six to a row.
    pub fn number(title: &'static str, question: &'static str, unit: Unit) -> Self {
        Self::new(PanelKind::Stat, title, question, unit, 4)
    }

    /// The distribution of a histogram over time.
    pub fn heatmap(title: &'static str, question: &'static str, unit: Unit) -> Self {
        Self::new(PanelKind::Heatmap, title, question, unit, 12)
    }

    /// What is on and off over time.
    pub fn states(title: &'static str, question: &'static str) -> Self {
        Self::new(PanelKind::StateTimeline, title, question, Unit::Count, 12)
    }

    /// A row for each series as it is now, with its labels as columns.
    pub fn table(title: &'static str, question: &'static str, unit: Unit) -> Self {
        Self::new(PanelKind::Table, title, question, unit, 12)
    }

    pub fn kind(&self) -> PanelKind {
        self.kind
    }

    pub fn show(mut self, expr: impl Into<String>, legend: &'static str) -> Self {
        self.queries.push(query(expr, legend));
        self
    }

    /// Shows the labels of series whose value says nothing, as those of info metrics.
    pub fn facts(self, expr: impl Into<String>) -> Self {
        Self { facts: true, ..self }.show(expr, "value")
    }

    pub fn width(self, width: u32) -> Self {
        Self { width, ..self }
    }

    pub fn log(self) -> Self {
        Self { log: true, ..self }
    }

    pub fn stacked(self) -> Self {
        Self { stacked: true, ..self }
    }

    pub fn bars(self) -> Self {
        Self { bars: true, ..self }
    }

    pub fn from_zero(self) -> Self {
        Self { min: Some(0.0), ..self }
    }

    pub fn up_to(self, max: f64) -> Self {
        Self { max: Some(max), ..self }
    }

    /// From this value on, in this colour.
    pub fn threshold(mut self, value: f64, color: &'static str) -> Self {
        self.thresholds.push((value, color));
        self
    }

    /// What a value is called, and its colour.
    pub fn word(mut self, value: f64, text: &'static str, color: &'static str) -> Self {
        self.words.push((value, text, color));
        self
    }

    /// Where a click on a value leads.
    pub fn link(mut self, title: &'static str, url: &'static str) -> Self {
        self.links.push(DataLink { title, url, target_blank: true });
        self
    }

    fn height(&self) -> u32 {
        if self.kind == PanelKind::Stat { 4 } else { 8 }
    }

    fn panel(&self, id: u32, grid_pos: GridPos) -> Panel {
        let format = match self.kind {
            PanelKind::Heatmap => "heatmap",
            PanelKind::Table => "table",
            _ => "time_series",
        };
        let instant = self.kind == PanelKind::Table;
        let target = |(i, query): (usize, &Query)| Target {
            ref_id: ref_id(i),
            datasource: PICKED,
            editor_mode: "code",
            expr: query.expr.clone(),
            legend_format: query.legend,
            format,
            range: !instant,
            instant,
        };
        Panel {
            id,
            kind: self.kind,
            title: self.title,
            description: self.question,
            grid_pos,
            datasource: Some(PICKED),
            targets: self.queries.iter().enumerate().map(target).collect(),
            field_config: Some(FieldConfig { defaults: self.defaults(), overrides: [] }),
            options: self.options(),
            transformations: self.transformations(),
            collapsed: None,
            panels: None,
        }
    }

    /// A table shows what it is about and the value, not when it was read.
    fn transformations(&self) -> Vec<Transformation> {
        if self.kind != PanelKind::Table {
            return Vec::new();
        }
        let value = self.queries.first().map_or("value", |query| query.legend);
        vec![Transformation::Organize(Organize {
            exclude_by_name: BTreeMap::from([("Time", true), ("Value", self.facts)]),
            rename_by_name: BTreeMap::from([("Value", value)]),
        })]
    }

    fn defaults(&self) -> FieldDefaults {
        let by_value = !self.thresholds.is_empty();
        FieldDefaults {
            unit: self.unit,
            min: self.min,
            max: self.max,
            color: Color { mode: if by_value { "thresholds" } else { "palette-classic" } },
            custom: self.custom(),
            thresholds: by_value.then(|| self.steps()),
            mappings: self.mappings(),
            links: self.links.clone(),
        }
    }

    fn mappings(&self) -> Vec<Mapping> {
        let shown = |(index, (value, text, color)): (usize, &(f64, &'static str, &'static str))| {
            (value.to_string(), Shown { text, color, index })
        };
        let words: BTreeMap<_, _> = self.words.iter().enumerate().map(shown).collect();
        if words.is_empty() { Vec::new() } else { vec![Mapping::Value(words)] }
    }

    fn steps(&self) -> Thresholds {
        let first = Threshold { color: "green", value: None };
        let above = self.thresholds.iter().map(|(value, color)| Threshold { color, value: Some(*value) });
        Thresholds { mode: "absolute", steps: std::iter::once(first).chain(above).collect() }
    }

    fn custom(&self) -> Custom {
        if self.kind != PanelKind::Timeseries {
            return Custom::default();
        }
        let filled = self.stacked || self.bars;
        Custom {
            draw_style: Some(if self.bars { "bars" } else { "line" }),
            line_width: Some(1),
            fill_opacity: Some(if filled { 40 } else { 0 }),
            show_points: Some("never"),
            stacking: self.stacked.then_some(Stacking { mode: "normal", group: "A" }),
            scale_distribution: self.log.then_some(Scale::Log { log: 10 }),
        }
    }

    fn options(&self) -> Option<Options> {
        let legend = |mode, calcs: &[&'static str]| Legend {
            display_mode: mode,
            placement: "bottom",
            show_legend: true,
            calcs: calcs.to_vec(),
        };
        match self.kind {
            PanelKind::Row => None,
            PanelKind::Table => Some(Options::Table { show_header: true, cell_height: "sm" }),
            PanelKind::Stat => Some(Options::Stat(StatOptions {
                reduce_options: Reduce { calcs: ["lastNotNull"], fields: "", values: false },
                color_mode: "value",
                graph_mode: "area",
            })),
            PanelKind::Timeseries => Some(Options::Timeseries {
                legend: legend("table", &["lastNotNull", "max"]),
                tooltip: Tooltip { mode: "multi", sort: "desc" },
            }),
            PanelKind::Heatmap => Some(Options::Heatmap(HeatmapOptions {
                calculate: false,
                y_axis: HeatmapAxis { unit: self.unit },
                color: HeatmapColor { mode: "scheme", scheme: "Spectral", steps: 64 },
            })),
            PanelKind::StateTimeline => Some(Options::StateTimeline(StateTimelineOptions {
                merge_values: true,
                show_value: if self.words.is_empty() { "never" } else { "auto" },
                legend: legend("list", &[]),
            })),
        }
    }
}

impl Board {
    /// Places the panels: from left to right, and below when a line is full.
    pub fn dashboard(&self) -> Dashboard {
        let mut panels = Vec::new();
        let (mut id, mut y) = (0, 0);
        let mut next_id = || {
            id += 1;
            id
        };
        for row in &self.rows {
            let mut header = header(next_id(), row.title, y);
            y += 1;
            let mut inside = Vec::new();
            let (mut x, mut line_height) = (0, 0);
            for chart in &row.charts {
                if x + chart.width > COLUMNS {
                    (x, y, line_height) = (0, y + line_height, 0);
                }
                let at = GridPos { h: chart.height(), w: chart.width, x, y };
                inside.push(chart.panel(next_id(), at));
                x += chart.width;
                line_height = line_height.max(chart.height());
            }
            y += line_height;
            // Grafana keeps the panels of a folded row within it, and those of an open one behind
            // it.
            let behind = if row.folded { Vec::new() } else { std::mem::take(&mut inside) };
            header.collapsed = Some(row.folded);
            header.panels = Some(inside);
            panels.push(header);
            panels.extend(behind);
        }
        Dashboard {
            uid: self.uid,
            title: self.title,
            description: self.description,
            tags: vec!["stepwatch"],
            schema_version: SCHEMA_VERSION,
            // A change belongs into the code that this file is generated from.
            editable: false,
            graph_tooltip: 1,
            refresh: "30s",
            time: TimeRange { from: "now-6h", to: "now" },
            links: head::links(),
            templating: Listed { list: (self.variables)() },
            annotations: Listed { list: (self.annotations)() },
            panels,
        }
    }

    /// Every expression that is sent to Prometheus, annotations included.
    pub fn expressions(&self) -> Vec<String> {
        self.queries().into_iter().map(|(expr, _)| expr).collect()
    }

    /// The same with what names each series: its legend, or the text of the annotation.
    pub fn queries(&self) -> Vec<(String, &'static str)> {
        let panels = self.rows.iter().flat_map(|row| &row.charts).flat_map(|chart| &chart.queries);
        let panels = panels.map(|query| (query.expr.clone(), query.legend));
        panels.chain((self.annotations)().into_iter().map(|a| (a.expr, a.text_format))).collect()
    }
}

fn header(id: u32, title: &'static str, y: u32) -> Panel {
    Panel {
        id,
        kind: PanelKind::Row,
        title,
        description: "",
        grid_pos: GridPos { h: 1, w: COLUMNS, x: 0, y },
        datasource: None,
        targets: Vec::new(),
        field_config: None,
        options: None,
        transformations: Vec::new(),
        collapsed: None,
        panels: None,
    }
}

/// `A` to `Z`, then `A1`...
fn ref_id(i: usize) -> String {
    let letter = char::from(b'A' + (i % 26) as u8);
    if i < 26 { letter.to_string() } else { format!("{letter}{}", i / 26) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board() -> Board {
        let chart = |width| Chart::lines("a", "b?", Unit::Count).width(width).show("up", "");
        Board {
            uid: "u",
            title: "t",
            description: "",
            variables: Vec::new,
            annotations: Vec::new,
            rows: vec![
                Row::open("one", vec![chart(12), chart(12), chart(8)]),
                Row::open("two", vec![chart(24)]),
                Row::folded("three", vec![chart(6), chart(6)]),
            ],
        }
    }

    #[test]
    fn panels_flow_and_never_overlap() {
        let panels = board().dashboard().panels;
        let places: Vec<_> = panels.iter().map(|p| (p.grid_pos.x, p.grid_pos.y, p.grid_pos.w)).collect();
        assert_eq!(
            places,
            [(0, 0, 24), (0, 1, 12), (12, 1, 12), (0, 9, 8), (0, 17, 24), (0, 18, 24), (0, 26, 24)]
        );
        let folded = panels.last().and_then(|row| row.panels.as_ref()).unwrap();
        assert_eq!(
            folded.iter().map(|p| (p.grid_pos.x, p.grid_pos.y)).collect::<Vec<_>>(),
            [(0, 27), (6, 27)]
        );
        let ids: Vec<_> = panels.iter().chain(folded).map(|p| p.id).collect();
        assert_eq!(ids, (1..=9).collect::<Vec<_>>());
    }

    #[test]
    fn queries_have_distinct_names() {
        let names: std::collections::BTreeSet<_> = (0..100).map(ref_id).collect();
        assert_eq!(names.len(), 100);
    }
}
