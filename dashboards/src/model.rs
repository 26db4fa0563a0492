//! As much of Grafana's dashboard model as these dashboards use (schema 39, Grafana 10 and later).
//!
//! Field names and shapes are Grafana's; what a panel should say is decided in `layout` and above.

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
    pub templating: Listed<Variable>,
    pub annotations: Listed<Annotation>,
    pub panels: Vec<Panel>,
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
    Datasource { name: &'static str, label: &'static str, query: &'static str, refresh: u8 },
    Query(QueryVariable),
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueryVariable {
    pub name: &'static str,
    pub label: &'static str,
    pub datasource: DataSource,
    pub query: &'static str,
    /// 2: when the time range changes.
    pub refresh: u8,
    pub sort: u8,
    pub multi: bool,
    pub include_all: bool,
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
    /// Only rows: panels inside a collapsed row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collapsed: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PanelKind {
    Row,
    Stat,
    Timeseries,
    Heatmap,
    StateTimeline,
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
    #[serde(rename = "celsius")]
    Celsius,
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
    Timeseries { legend: Legend, tooltip: Tooltip },
    Heatmap(HeatmapOptions),
    StateTimeline(StateTimelineOptions),
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
