//! As much of Grafana's dashboard model as these dashboards use (schema 39, Grafana 10 and later).
//!
//! Field names and shapes are Grafana's; what a panel should say is decided in `layout` and above.

use std::collections::BTreeMap;

use serde::Serialize;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Dashboard {
    pub uid: &'static str,
    pub title: &'static str,
    pub description: &'static str,
    pub tags: Vec<&'static str>,
    pub schema_version: u32,
    pub editable: bool,
    /// 1: one crosshair across panels.
    pub graph_tooltip: u8,
    pub refresh: &'static str,
    pub time: TimeRange,
    pub links: Vec<DashboardLink>,
    pub templating: Listed<Variable>,
    pub annotations: Listed<Annotation>,
    pub panels: Vec<Panel>,
}

/// A link in the head of the dashboard.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DashboardLink {
    pub title: &'static str,
    /// `link`, or `dashboards`: all with one of the tags.
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub icon: &'static str,
    pub tooltip: &'static str,
    pub url: &'static str,
    pub tags: Vec<&'static str>,
    pub as_dropdown: bool,
    pub include_vars: bool,
    pub keep_time: bool,
    pub target_blank: bool,
}

#[derive(Debug, Serialize)]
pub struct TimeRange {
    pub from: &'static str,
    pub to: &'static str,
}

#[derive(Debug, Serialize)]
pub struct Listed<T> {
    pub list: Vec<T>,
}

/// The Prometheus that the user picks at the top of the dashboard.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct DataSource {
    #[serde(rename = "type")]
    kind: &'static str,
    uid: &'static str,
}

pub const PICKED: DataSource = DataSource { kind: "prometheus", uid: "${datasource}" };

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Variable {
    Datasource {
        name: &'static str,
        label: &'static str,
        query: &'static str,
        refresh: u8,
    },
    Query(QueryVariable),
    /// A text that the reader may change.
    Textbox {
        name: &'static str,
        label: &'static str,
        query: &'static str,
        current: Choice,
    },
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueryVariable {
    pub name: &'static str,
    pub label: &'static str,
    pub datasource: DataSource,
    pub query: &'static str,
    /// 0: shown, 2: hidden.
    pub hide: u8,
    /// What of a value is kept: its first group.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub regex: &'static str,
    /// 2: when the time range changes.
    pub refresh: u8,
    pub sort: u8,
    pub multi: bool,
    pub include_all: bool,
    /// The regular expression that stands for all of them.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub all_value: &'static str,
    /// What is chosen when the dashboard is opened; Grafana takes the first where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<Choice>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct Choice {
    pub text: &'static str,
    pub value: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Annotation {
    pub name: &'static str,
    pub enable: bool,
    pub icon_color: &'static str,
    pub datasource: DataSource,
    pub expr: String,
    pub step: &'static str,
    pub title_format: &'static str,
    pub text_format: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Panel {
    pub id: u32,
    #[serde(rename = "type")]
    pub kind: PanelKind,
    pub title: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub description: &'static str,
    pub grid_pos: GridPos,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datasource: Option<DataSource>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<Target>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field_config: Option<FieldConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<Options>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub transformations: Vec<Transformation>,
    /// Only rows: whether the row is folded, and the panels in a folded one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collapsed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub panels: Option<Vec<Panel>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PanelKind {
    Row,
    Stat,
    Timeseries,
    Heatmap,
    StateTimeline,
    Table,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct GridPos {
    pub h: u32,
    pub w: u32,
    pub x: u32,
    pub y: u32,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    pub ref_id: String,
    pub datasource: DataSource,
    pub editor_mode: &'static str,
    pub expr: String,
    pub legend_format: &'static str,
    pub format: &'static str,
    pub range: bool,
    pub instant: bool,
}

#[derive(Debug, Serialize)]
pub struct FieldConfig {
    pub defaults: FieldDefaults,
    pub overrides: [(); 0],
}

#[derive(Debug, Serialize)]
pub struct FieldDefaults {
    pub unit: Unit,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    pub color: Color,
    pub custom: Custom,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thresholds: Option<Thresholds>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mappings: Vec<Mapping>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<DataLink>,
}

/// Words and colours of values.
#[derive(Debug, Serialize)]
#[serde(tag = "type", content = "options", rename_all = "lowercase")]
pub enum Mapping {
    Value(BTreeMap<String, Shown>),
}

/// What is shown instead of a value.
#[derive(Debug, Serialize)]
pub struct Shown {
    pub text: &'static str,
    pub color: &'static str,
    pub index: usize,
}

/// Where a click on a value leads.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DataLink {
    pub title: &'static str,
    pub url: &'static str,
    pub target_blank: bool,
}

#[derive(Debug, Serialize)]
#[serde(tag = "id", content = "options", rename_all = "lowercase")]
pub enum Transformation {
    Organize(Organize),
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Organize {
    pub exclude_by_name: BTreeMap<&'static str, bool>,
    pub rename_by_name: BTreeMap<&'static str, &'static str>,
}

/// Grafana's names of the units that our metrics have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Unit {
    #[serde(rename = "none")]
    Count,
    #[serde(rename = "short")]
    Short,
    #[serde(rename = "sci")]
    Scientific,
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "bytes")]
    Bytes,
    #[serde(rename = "percentunit")]
    Ratio,
    #[serde(rename = "cps")]
    PerSecond,
    #[serde(rename = "Bps")]
    BytesPerSecond,
    #[serde(rename = "hertz")]
    Hertz,
    #[serde(rename = "watt")]
    Watts,
    #[serde(rename = "amp")]
    Amperes,
    #[serde(rename = "volt")]
    Volts,
    #[serde(rename = "celsius")]
    Celsius,
    #[serde(rename = "pps")]
    PacketsPerSecond,
    #[serde(rename = "flops")]
    Flops,
    #[serde(rename = "dateTimeFromNow")]
    FromNow,
}

#[derive(Debug, Serialize)]
pub struct Color {
    pub mode: &'static str,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Custom {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draw_style: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line_width: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill_opacity: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub show_points: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacking: Option<Stacking>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_distribution: Option<Scale>,
}

#[derive(Debug, Serialize)]
pub struct Stacking {
    pub mode: &'static str,
    pub group: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Scale {
    Log { log: u32 },
}

#[derive(Debug, Serialize)]
pub struct Thresholds {
    pub mode: &'static str,
    pub steps: Vec<Threshold>,
}

#[derive(Debug, Serialize)]
pub struct Threshold {
    pub color: &'static str,
    /// The first has none.
    pub value: Option<f64>,
}

/// What differs from one kind of panel to the next.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Options {
    Stat(StatOptions),
    Timeseries {
        legend: Legend,
        tooltip: Tooltip,
    },
    Heatmap(HeatmapOptions),
    StateTimeline(StateTimelineOptions),
    #[serde(rename_all = "camelCase")]
    Table {
        show_header: bool,
        cell_height: &'static str,
    },
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StatOptions {
    pub reduce_options: Reduce,
    pub color_mode: &'static str,
    pub graph_mode: &'static str,
}

#[derive(Debug, Serialize)]
pub struct Reduce {
    pub calcs: [&'static str; 1],
    pub fields: &'static str,
    pub values: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Legend {
    pub display_mode: &'static str,
    pub placement: &'static str,
    pub show_legend: bool,
    pub calcs: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
pub struct Tooltip {
    pub mode: &'static str,
    pub sort: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeatmapOptions {
    pub calculate: bool,
    pub y_axis: HeatmapAxis,
    pub color: HeatmapColor,
}

#[derive(Debug, Serialize)]
pub struct HeatmapAxis {
    pub unit: Unit,
}

#[derive(Debug, Serialize)]
pub struct HeatmapColor {
    pub mode: &'static str,
    pub scheme: &'static str,
    pub steps: u32,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StateTimelineOptions {
    pub merge_values: bool,
    pub show_value: &'static str,
    pub legend: Legend,
}
