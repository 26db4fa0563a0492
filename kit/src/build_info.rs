//! The version of the build: in `<program>_build_info` on the metrics page, and in `--version`.

use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The short commit of a release build, `dev` in a debug build, `unknown` outside a checkout.
pub const GIT_SHA: &str = env!("STEPWATCH_GIT_SHA");

/// Registers `<program>_build_info`, for instance `stepwatch_exporter_build_info`.
pub fn register(registry: &mut Registry, program: &str) {
    registry.register(
        format!("{program}_build"),
        "The running build, as labels of a constant 1",
        Info::new([("version", VERSION), ("revision", GIT_SHA)]),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_info_series() {
        let mut registry = Registry::default();
        register(&mut registry, "stepwatch_exporter");
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
        let want = format!(r#"stepwatch_exporter_build_info{{version="{VERSION}",revision="{GIT_SHA}"}} 1"#);
        assert!(page.contains(&want), "{page}");
    }
}
