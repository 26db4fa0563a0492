//! Schemas of types from other crates: enums of the engine, labels, matchers, numbers, times.
//!
//! The engine does not depend on the OpenAPI crates. Its enums are listed here again, in a way that
//! does not compile if a variant is missing.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Value, json};
use stepwatch_respond::{effect, incident, message, oncall, silence};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{
    AdditionalProperties, KnownFormat, Object, ObjectBuilder, OneOfBuilder, Schema, SchemaFormat, SchemaType,
    Type,
};
use utoipa::{PartialSchema, ToSchema};

use super::super::view::When;
use crate::store;

/// Text without control characters.
const PRINTABLE: &str = r"^[^\x00-\x1f\x7f-\x9f]*$";
/// Text without control characters that is not blank.
const SHOWS: &str = r"^[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*$";

/// A matcher: a name, an operator and a value; the name and the value may be quoted.
const MATCHER: &str = concat!(
    r#"^\s*("([^"\\]|\\[\s\S])+"|[^"=!\s\x00-\x1f\x7f-\x9f][^=!\x00-\x1f\x7f-\x9f]*)\s*"#,
    r#"(=~|!~|!=|=)\s*("([^"\\]|\\[\s\S])*"|[^"\s][\s\S]*)?\s*$"#
);

macro_rules! words {
    ($($(#[doc = $doc:literal])* $name:ident = $of:path { $($variant:ident)* })*) => {$(
        $(#[doc = $doc])*
        #[derive(Debug)]
        pub struct $name;

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                // A missing variant does not compile.
                const _: fn($of) = |word| match word { $(<$of>::$variant => {})* };
                described(concat!($($doc),*), words_of(vec![$(word(<$of>::$variant)),*]))
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                Cow::Borrowed(stringify!($name))
            }
        }
    )*};
}

words! {
    /// `page` wakes someone, `ticket` is for the day, `info` notifies nobody.
    Severity = stepwatch_model::Severity { Info Ticket Page }
    /// The coarse subject of an incident: a run or node has at most one open incident a cause.
    Cause = stepwatch_model::Cause {
        Numerics Speed Progress Checkpoint Telemetry Hardware Config User Node Signal Alerting External
    }
    /// The state of an incident.
    IncidentState = incident::State { Open Acknowledged Resolved }
    /// How an incident ended: resolved by a person, resolved by its sender, cleared by
    /// measurements, stale because nothing was received, ended with its run, or replaced by
    /// another.
    Ended = incident::Ended { Person Sender Clear Stale RunEnded Replaced }
    /// What a person who resolved an incident says that it was.
    Verdict = incident::Verdict { Real Noise False }
    /// Why an open incident notifies nobody: a silence, an incident that explains it, or an
    /// incident that stands for many.
    SuppressionReason = incident::SuppressionReason { Silenced Inhibited RolledUp }
    /// The effect of a message on its receiver.
    Action = effect::Action { Trigger Update Ack Resolve }
    /// The state of a message. `ambiguous`: sent, and it is unknown whether it arrived;
    /// `superseded`: a newer one replaced it.
    DeliveryState = store::DeliveryState { Pending Attempting Ambiguous Delivered Failed Superseded }
    /// The state of a silence.
    SilenceState = silence::Phase { Pending Active Expired }
    /// The state of an override. `active`: it has begun, also between the two shifts of a swap.
    OverrideState = oncall::OverridePhase { Coming Active Over }
}

macro_rules! named {
    ($($(#[doc = $doc:literal])* $name:ident => $schema:expr;)*) => {$(
        $(#[doc = $doc])*
        #[derive(Debug)]
        pub struct $name;

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                described(concat!($($doc),*), $schema)
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                Cow::Borrowed(stringify!($name))
            }
        }
    )*};
}

named! {
    /// The precise kind of a problem. Kinds may be added; existing names stay.
    Kind => words_of(stepwatch_model::Kind::ALL.iter().map(|kind| kind.as_str().into()).collect());
    /// Why a message was sent. Reasons may be added; existing names stay.
    Reason => words_of(message::Reason::ALL.iter().map(|reason| reason.as_str().into()).collect());
    /// Names to values.
    Labels => ObjectBuilder::new()
        .additional_properties(Some(AdditionalProperties::from(Schema::Object(Object::with_type(Type::String)))))
        .examples([json!({"kind": "hang", "run": "llama-70b", "severity": "page"})])
        .build();
    /// What a sentence says, as data: names to numbers, text, lists, and observations as objects.
    /// Spans are in seconds, and their names end in `_seconds`; shares are fractions of one;
    /// numbers that are not finite are text. Which names there are depends on the kind.
    Facts => ObjectBuilder::new()
        .additional_properties(Some(AdditionalProperties::FreeForm(true)))
        .examples([json!({"now": 3.1, "usual": 0.4, "times": 7.75, "step": 12345, "idle_seconds": 90.0})])
        .build();
    /// The name of a person, of which something must show.
    Person => line(SHOWS, 100);
    /// One line.
    Line => line(SHOWS, 1000);
    /// The name of a label.
    LabelName => label_name();
    /// Names to values. An empty value is none; 1 to 64 are not empty.
    LabelSet => ObjectBuilder::new()
        .additional_properties(Some(AdditionalProperties::from(Schema::Object(
            ObjectBuilder::new().schema_type(Type::String).max_length(Some(1024)).build(),
        ))))
        .min_properties(Some(1))
        .examples([json!({"alertname": "DiskFull", "severity": "critical", "instance": "gpu-001:9100"})])
        .build();
    /// RFC 3339; none if it is empty.
    TimeOrNone => ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some(r"^$|^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}"))
        .examples([json!("2026-11-21T02:16:56.000Z"), json!("")])
        .build();
    /// A label and what its value must or must not be, in Prometheus' syntax; quotes may be left
    /// out where they are not needed.
    Matcher => ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some(MATCHER))
        .examples([json!("run=\"llama-70b\""), json!("kind=~\"hang|straggler\""), json!("node!=\"gpu-042\"")])
        .build();
    /// A time with its offset, or one without: then on the clock of each schedule.
    Moment => ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some(r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-][0-9]{2}:[0-9]{2})?$"))
        .examples([json!("2026-11-21T02:00:00Z"), json!("2026-11-21T02:00")])
        .build();
    /// How long: a number and a unit.
    Duration => ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some(r"^[0-9]{1,6}(\.[0-9]{1,3})?(ms|s|m|h|d)$"))
        .examples([json!("30m"), json!("2h"), json!("1d")])
        .build();
}

/// A number, or the word for one that is not finite.
#[derive(Debug)]
pub struct Number;

impl PartialSchema for Number {
    fn schema() -> RefOr<Schema> {
        let words = ["NaN", "Infinity", "-Infinity"].map(Value::from);
        let number = OneOfBuilder::new()
            .description(Some("A number, or the word for one that is not finite"))
            .item(Object::with_type(Type::Number))
            .item(words_of(words.to_vec()))
            .examples([json!(11.73), json!("NaN")]);
        RefOr::T(Schema::OneOf(number.build()))
    }
}

impl ToSchema for Number {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Number")
    }
}

/// Someone or something to look at first, with the reason.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "it is only described: the engine's own type is what is written")]
pub struct Suspect {
    /// The suspect as data: one key, which is its kind.
    #[schema(value_type = Object, examples(json!({"gpu": {"node": "gpu-042", "index": 3, "uuid": "GPU-2f3c", "pci": ""}})))]
    target: (),
    /// The suspect in words.
    #[schema(examples("node gpu-042"))]
    what: String,
    #[schema(examples("rank 17 computes 2.3 times as long as the others"))]
    why: String,
    evidence: Vec<Evidence>,
}

/// What to do, with the arithmetic that speaks for it.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "it is only described: the engine's own type is what is written")]
pub struct Plan {
    /// In the order in which they are done, as data: a word, or one key, which is the remedy.
    #[schema(value_type = Vec<Object>, examples(json!([{"restart": {"checkpoint": 12000}}])))]
    remedies: (),
    cost: PlanCost,
}

/// The arithmetic of a plan. What is not known is null.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "it is only described: the engine's own type is what is written")]
pub struct PlanCost {
    /// Those of the run.
    gpus: Option<u32>,
    dollars_per_gpu_hour: Option<f64>,
    /// The share of its speed that the run has lost, between 0 and 1.
    speed_lost: Option<f64>,
    /// The run takes no steps: all of its GPUs are idle.
    stands: bool,
    /// Steps that are done again, and how long they take.
    steps_redone: Option<i64>,
    redo_seconds: Option<f64>,
    /// What a restart costs now: the steps since the last checkpoint, and starting.
    restart_seconds: Option<f64>,
    /// What a restart costs right after a checkpoint.
    start_seconds: Option<f64>,
    /// After how long a restart that cures the slow-down has paid for itself.
    pays_back_seconds: Option<f64>,
    #[schema(value_type = Forecast, required = false)]
    forecast: (),
}

/// Where a slow-down that creeps leads.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "it is only described: the engine's own type is what is written")]
pub struct Forecast {
    /// It took so many steps to lose what is lost now.
    steps: i64,
    /// The share of the speed that will be lost after so many seconds more.
    speed_lost: f64,
    seconds: f64,
}

/// A piece of evidence against a suspect.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "it is only described: the engine's own type is what is written")]
pub struct Evidence {
    /// The observation as data: a word, or one key, which is its kind.
    #[schema(value_type = Object, examples(json!({"computes_longer": {"value": 2.3, "others": 7, "stage": null, "since_step": 900}})))]
    observation: (),
    /// Where it was observed, if that is not the suspect itself.
    #[schema(value_type = Option<Object>)]
    of: (),
    /// The observation in words.
    words: String,
    /// The observed number, if there is one.
    #[schema(value_type = Number, required = false)]
    value: Option<f64>,
    /// The expected number.
    #[schema(value_type = Number, required = false)]
    expected: Option<f64>,
    unit: Option<String>,
    /// When it began, in Unix milliseconds, once it was weighed.
    since: Option<i64>,
    /// 1 for a reported fault, ln(1 + S/h) for a statistic that stands at S with its bound at h.
    #[schema(value_type = Number, required = false)]
    strength: Option<f64>,
    /// Score of the suspect when it was ranked, on the last piece that counted.
    #[schema(value_type = Number, required = false)]
    score: Option<f64>,
}

impl PartialSchema for When {
    fn schema() -> RefOr<Schema> {
        let time = ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .description(Some("RFC 3339; written in UTC with milliseconds, read with any offset"))
            .examples([json!("2026-11-21T02:16:56.000Z")]);
        RefOr::T(Schema::Object(time.build()))
    }
}

impl ToSchema for When {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Time")
    }
}

fn label_name() -> Object {
    line(PRINTABLE, 256)
}

fn line(pattern: &str, most: usize) -> Object {
    let line = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).max_length(Some(most));
    line.pattern(Some(pattern)).build()
}

fn described(description: &str, mut schema: Object) -> RefOr<Schema> {
    schema.description = Some(description.trim().to_owned());
    RefOr::T(Schema::Object(schema))
}

fn words_of(words: Vec<Value>) -> Object {
    ObjectBuilder::new().schema_type(SchemaType::Type(Type::String)).enum_values(Some(words)).build()
}

/// The serialized form of a variant.
fn word(of: impl Serialize) -> Value {
    serde_json::to_value(of).unwrap_or_default()
}
