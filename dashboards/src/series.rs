//! Expressions that are right however many jobs scrape a node and however many clusters share a
//! Prometheus.
//!
//! Two rules make them so. Every aggregation keeps `cluster` and what identifies the subject, so
//! nodes of one name in two clusters stay apart. And a series is reduced to one value a subject
//! (`max by`) before it is added up or joined, so a node that two jobs scrape counts once. A label
//! `cluster` that is absent is equal on both sides of a join and changes nothing.

/// What every query of an exporter's metrics is limited to.
const CHOSEN: &str = r#"cluster=~"$cluster", job=~"$job", instance=~"$instance""#;

/// The samples of one metric, or what a function makes of each.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    name: &'static str,
    matchers: String,
    function: Option<(&'static str, &'static str)>,
}

/// A metric of the chosen targets.
pub(crate) fn of(name: &'static str) -> Series {
    Series { name, matchers: CHOSEN.to_owned(), function: None }
}

/// The exporters that are there, by labels of their nodes.
pub(crate) fn exporters(labels: &str) -> Expr {
    of("stepwatch_exporter_build_info").max(labels)
}

/// A metric of the chosen runs.
pub(crate) fn run(name: &'static str) -> Series {
    of(name).with(r#"run=~"$run""#)
}

/// A metric of the chosen GPUs.
pub(crate) fn gpu(name: &'static str) -> Series {
    of(name).with(r#"gpu=~"$gpu""#)
}

/// A metric of the chosen adapters.
pub(crate) fn port(name: &'static str) -> Series {
    of(name).with(r#"device=~"$device""#)
}

/// A metric whose label `job` is a job of the scheduler and not Prometheus's: the sample
/// configuration of Prometheus honours the exporter's labels.
pub(crate) fn scheduled(name: &'static str) -> Series {
    Series {
        name,
        matchers: r#"cluster=~"$cluster", instance=~"$instance", job=~"$scheduled""#.to_owned(),
        function: None,
    }
}

/// A metric of the alerters, on a board whose `$job` is that of the exporters.
pub(crate) fn alerter(name: &'static str) -> Series {
    Series { name, matchers: r#"cluster=~"$cluster""#.to_owned(), function: None }
}

impl Series {
    pub(crate) fn with(mut self, matchers: &str) -> Self {
        self.matchers = format!("{}, {matchers}", self.matchers);
        self
    }

    fn function(self, name: &'static str, window: &'static str) -> Self {
        Self { function: Some((name, window)), ..self }
    }

    pub(crate) fn rate(self) -> Self {
        self.function("rate", "$__rate_interval")
    }

    pub(crate) fn increase(self) -> Self {
        self.function("increase", "$__rate_interval")
    }

    pub(crate) fn increase_in(self, window: &'static str) -> Self {
        self.function("increase", window)
    }

    pub(crate) fn changes_in(self, window: &'static str) -> Self {
        self.function("changes", window)
    }

    /// How much a counter rose within the window, where it did. The series of an error begins with
    /// its first one, which `increase()` does not see: one that was not there before the window
    /// counts in full, where its exporter was.
    pub(crate) fn new_in(&self, window: &'static str) -> Expr {
        let selector = self.selector();
        let exporter = of("stepwatch_exporter_build_info").selector();
        Expr(format!(
            "(increase({selector}[{window}]) > 0 or ({selector} unless {selector} offset {window}) \
             and on (cluster, job, instance) {exporter} offset {window})"
        ))
    }

    fn selector(&self) -> String {
        format!("{}{{{}}}", self.name, self.matchers)
    }

    /// As it is, one series for each that Prometheus has.
    pub(crate) fn raw(&self) -> Expr {
        let selector = self.selector();
        Expr(match self.function {
            Some((function, window)) => format!("{function}({selector}[{window}])"),
            None => selector,
        })
    }

    /// One value for each combination of the labels: the largest of those that were scraped.
    pub(crate) fn max(&self, labels: &str) -> Expr {
        self.raw().max(labels)
    }

    /// The smallest.
    pub(crate) fn min(&self, labels: &str) -> Expr {
        self.raw().by("min", labels)
    }
}

/// A whole expression.
#[derive(Debug, Clone)]
pub(crate) struct Expr(String);

impl Expr {
    fn by(&self, aggregation: &str, labels: &str) -> Self {
        let comma = if labels.is_empty() { "" } else { ", " };
        Self(format!("{aggregation} by (cluster{comma}{labels}) ({})", self.0))
    }

    pub(crate) fn max(&self, labels: &str) -> Self {
        self.by("max", labels)
    }

    pub(crate) fn sum(&self, labels: &str) -> Self {
        self.by("sum", labels)
    }

    pub(crate) fn avg(&self, labels: &str) -> Self {
        self.by("avg", labels)
    }

    pub(crate) fn count(&self, labels: &str) -> Self {
        self.by("count", labels)
    }

    pub(crate) fn quantile(&self, q: f64, labels: &str) -> Self {
        let comma = if labels.is_empty() { "" } else { ", " };
        Self(format!("quantile by (cluster{comma}{labels}) ({q}, {})", self.0))
    }

    /// The twenty largest: as many as a panel can show.
    pub(crate) fn top(&self) -> Self {
        Self(format!("topk(20, {})", self.0))
    }

    /// The twenty smallest.
    pub(crate) fn bottom(&self) -> Self {
        Self(format!("bottomk(20, {})", self.0))
    }

    /// Only where it is larger than this.
    pub(crate) fn above(&self, limit: f64) -> Self {
        Self(format!("({} > {limit})", self.0))
    }

    /// Only where it is this.
    pub(crate) fn equal(&self, value: f64) -> Self {
        Self(format!("({} == {value})", self.0))
    }

    /// 1 where it is this, 0 elsewhere: a sum of it is a number also where nothing is.
    pub(crate) fn is(&self, value: f64) -> Self {
        Self(format!("({} == bool {value})", self.0))
    }

    /// 1 where it is less than this, 0 elsewhere.
    pub(crate) fn is_below(&self, limit: f64) -> Self {
        Self(format!("({} < bool {limit})", self.0))
    }

    /// Nothing is 0 where `subjects`, which have the same labels, are there.
    pub(crate) fn or_zero(&self, subjects: &Self) -> Self {
        Self(format!("{} or 0 * {}", self.0, subjects.0))
    }

    /// A quantile of a histogram, by its buckets.
    pub(crate) fn quantile_of_buckets(&self, q: f64) -> Self {
        Self(format!("histogram_quantile({q}, {})", self.0))
    }

    /// Both have the same labels.
    pub(crate) fn over(&self, divisor: &Self) -> Self {
        Self(format!("{} / {}", self.0, divisor.0))
    }

    pub(crate) fn minus(&self, subtrahend: &Self) -> Self {
        Self(format!("{} - {}", self.0, subtrahend.0))
    }

    /// Each value times the one that `factor` has for its subject.
    pub(crate) fn times(&self, subject: &str, factor: &Self) -> Self {
        Self(format!("({}) * on (cluster, {subject}) group_left () {}", self.0, factor.0))
    }

    /// Only where `condition` has a series for the subject.
    pub(crate) fn only_where(&self, subject: &str, condition: &Self) -> Self {
        Self(format!("({} and on (cluster, {subject}) {})", self.0, condition.0))
    }

    pub(crate) fn abs(&self) -> Self {
        Self(format!("abs({})", self.0))
    }

    /// Of a time in seconds, the milliseconds that Grafana's units of time count in.
    pub(crate) fn in_milliseconds(&self) -> Self {
        Self(format!("{} * 1000", self.0))
    }

    /// Seconds until the time that it is.
    pub(crate) fn until(&self) -> Self {
        Self(format!("{} - time()", self.0))
    }

    /// Seconds since the time that it is.
    pub(crate) fn age(&self) -> Self {
        Self(format!("time() - {}", self.0))
    }

    /// With labels of an info metric, one of which is taken where two of them have one subject: a
    /// GPU that changed its index while the label was scraped, two jobs that scrape one node.
    pub(crate) fn join(&self, subject: &str, labels: &str, info: &Series) -> Self {
        let one = info.max(&format!("{subject}, {labels}"));
        Self(format!(
            "({}) * on (cluster, {subject}) group_left ({labels}) topk by (cluster, {subject}) (1, {})",
            self.0, one.0
        ))
    }

    /// GPUs with what people call them by: the index that `nvidia-smi` prints, and the slot.
    pub(crate) fn named(&self) -> Self {
        self.join("instance, gpu", "index, pci", &of("gpu_info"))
    }

    /// The same, and GPUs of which the driver says nothing any more, without those labels. `labels`
    /// are those of the series beside node and GPU.
    pub(crate) fn named_or_not(&self, labels: &str) -> Self {
        let comma = if labels.is_empty() { "" } else { ", " };
        Self(format!("{} or on (cluster, instance, gpu{comma}{labels}) ({})", self.named().0, self.0))
    }

    /// With the name of the node in a label of its own, for links.
    pub(crate) fn with_node(&self) -> Self {
        Self(format!(r#"label_replace({}, "node", "$1", "instance", "([^:]+).*")"#, self.0))
    }

    /// How many are at most each of the limits: a histogram that a heat map can show, however many
    /// series there are.
    pub(crate) fn spread(&self, limits: &[f64]) -> Self {
        let bucket = |le: String, count: String| format!(r#"label_replace({count}, "le", "{le}", "", "")"#);
        let mut buckets: Vec<_> = limits
            .iter()
            .map(|limit| bucket(limit.to_string(), format!("sum({} <= bool {limit})", self.0)))
            .collect();
        buckets.push(bucket("+Inf".to_owned(), format!("count({})", self.0)));
        Self(buckets.join(" or "))
    }
}

impl From<Expr> for String {
    fn from(expr: Expr) -> Self {
        expr.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_reduced_before_it_is_added_up() {
        let expr =
            gpu("gpu_nvlink_errors_total").rate().max("instance, gpu, link, kind").sum("instance, gpu");
        assert_eq!(
            String::from(expr),
            "sum by (cluster, instance, gpu) (max by (cluster, instance, gpu, link, kind) \
             (rate(gpu_nvlink_errors_total{cluster=~\"$cluster\", job=~\"$job\", instance=~\"$instance\", \
             gpu=~\"$gpu\"}[$__rate_interval])))"
        );
    }

    #[test]
    fn a_heat_map_has_cumulative_buckets() {
        let expr = String::from(Expr("x".to_owned()).spread(&[0.5, 1.0]));
        assert_eq!(
            expr,
            "label_replace(sum(x <= bool 0.5), \"le\", \"0.5\", \"\", \"\") or \
             label_replace(sum(x <= bool 1), \"le\", \"1\", \"\", \"\") or \
             label_replace(count(x), \"le\", \"+Inf\", \"\", \"\")"
        );
    }
}
