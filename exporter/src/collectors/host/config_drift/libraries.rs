//! Finds the libraries of a training process and their versions: from the names of its mapped
//! files, or else from the metadata of the package manager beside them.
//!
//! The list of mappings is read once for a process, or a few times until the wanted libraries are
//! loaded, because reading it holds a lock that the process needs to map memory.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::value::{Settings, shown};
use crate::processes;
use crate::roots::Roots;

/// A library whose version is compared.
struct Library {
    key: &'static str,
    /// The part of the file's name before `.so`.
    file: &'static str,
    /// Python packages that contain it; those of NVIDIA end in the version of CUDA.
    packages: &'static [&'static str],
}

const fn library(key: &'static str, file: &'static str, packages: &'static [&'static str]) -> Library {
    Library { key, file, packages }
}

static LIBRARIES: &[Library] = &[
    library("nccl", "libnccl", &["nvidia_nccl_cu"]),
    library("nccl_net", "libnccl-net", &["aws_ofi_nccl"]),
    library("cuda", "libcuda", &[]),
    library("cudart", "libcudart", &["nvidia_cuda_runtime_cu", "nvidia_cuda_runtime"]),
    library("cublas", "libcublas", &["nvidia_cublas_cu", "nvidia_cublas"]),
    library("cudnn", "libcudnn", &["nvidia_cudnn_cu"]),
    library("nvshmem", "libnvshmem_host", &["nvidia_nvshmem_cu"]),
    library("torch", "libtorch_cpu", &["torch"]),
    library("transformer_engine", "libtransformer_engine", &["transformer_engine"]),
    library("libfabric", "libfabric", &[]),
    library("libibverbs", "libibverbs", &[]),
    library("ucx", "libucp", &[]),
];

/// The most mapped files of libraries, of one process.
const MAX_FILES: usize = 64;
/// The most packages of one Python environment.
const MAX_PACKAGES: usize = 8192;
const MAX_VERSION_CHARS: usize = 40;

/// Versions by key; `None` if the mappings may not be read.
pub(super) fn versions(roots: &Roots, pid: u32) -> Option<Settings> {
    let maps = processes::maps(roots, pid).ok()?;
    let mut sites = BTreeMap::new();
    let mut found: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for path in mapped(&maps) {
        let Some((library, version)) = LIBRARIES.iter().find_map(|l| Some((l, l.version_in(path)?))) else {
            continue;
        };
        let version = match version {
            // A symbolic link with one or two numbers only gives the compatible version.
            version if version.split('.').count() > 2 => version.to_owned(),
            short => library
                .packaged(roots, pid, path, &mut sites)
                .unwrap_or_else(|| size(roots, pid, path, short)),
        };
        found.entry(library.key).or_default().insert(version);
    }
    let text = |versions: BTreeSet<String>| shown(&versions.into_iter().collect::<Vec<_>>().join(" "));
    Some(found.into_iter().map(|(key, versions)| (key.to_owned(), text(versions))).collect())
}

/// Mapped files with the name of a library of [`LIBRARIES`], each once. The process chooses names
/// and their number, so neither is copied.
fn mapped(maps: &[u8]) -> BTreeSet<&Path> {
    let lines = maps.split(|byte| *byte == b'\n');
    let paths = lines.filter_map(|line| line.iter().position(|byte| *byte == b'/').map(|at| &line[at..]));
    let paths = paths.filter_map(|path| {
        let path = Path::new(OsStr::from_bytes(path.strip_suffix(b" (deleted)").unwrap_or(path)));
        LIBRARIES.iter().any(|library| library.version_in(path).is_some()).then_some(path)
    });
    let mut found = BTreeSet::new();
    for path in paths {
        if found.len() >= MAX_FILES {
            break;
        }
        found.insert(path);
    }
    found
}

impl Library {
    /// The part of the file's name after `.so.`; empty if there is none.
    fn version_in<'a>(&self, path: &'a Path) -> Option<&'a str> {
        let rest = path.file_name()?.to_str()?.strip_prefix(self.file)?.strip_prefix(".so")?;
        let version = rest.strip_prefix('.').unwrap_or(rest);
        let plain = version.bytes().all(|b| b.is_ascii_alphanumeric() || b".-+_".contains(&b));
        (plain && version.len() <= MAX_VERSION_CHARS).then_some(version)
    }

    /// The version of the package that contains the file.
    fn packaged(
        &self,
        roots: &Roots,
        pid: u32,
        path: &Path,
        sites: &mut BTreeMap<PathBuf, Vec<String>>,
    ) -> Option<String> {
        let is_site = |p: &&Path| p.ends_with("site-packages") || p.ends_with("dist-packages");
        let site = path.ancestors().find(is_site)?;
        let names = sites.entry(site.to_owned()).or_insert_with(|| packages(roots, pid, site));
        self.packages.iter().find_map(|package| {
            names.iter().find_map(|name| {
                let (stem, version) = name.split_once('-')?;
                let rest = stem.strip_prefix(package)?;
                let fits =
                    rest.is_empty() || (package.ends_with("_cu") && rest.bytes().all(|b| b.is_ascii_digit()));
                (fits && version.len() <= MAX_VERSION_CHARS).then(|| version.to_owned())
            })
        })
    }
}

/// The packages with their versions, as `torch-2.5.1+cu124`.
fn packages(roots: &Roots, pid: u32, site: &Path) -> Vec<String> {
    let wanted = |name: &str| LIBRARIES.iter().flat_map(|l| l.packages).any(|of| name.starts_with(of));
    let entries = fs::read_dir(processes::seen_from_here(roots, pid, site)).into_iter().flatten().flatten();
    let names = entries.take(MAX_PACKAGES).filter_map(|entry| entry.file_name().into_string().ok());
    let packages = names.filter_map(|name| Some(name.strip_suffix(".dist-info")?.to_owned()));
    packages.filter(|name| wanted(name)).take(MAX_FILES).collect()
}

/// The version with the file's size, which distinguishes files without a version.
fn size(roots: &Roots, pid: u32, path: &Path, version: &str) -> String {
    let file = fs::metadata(processes::seen_from_here(roots, pid, path));
    match (file, version) {
        (Ok(file), "") => format!("{} bytes", file.len()),
        (Ok(file), version) => format!("{version} ({} bytes)", file.len()),
        (Err(_), "") => "unknown".to_owned(),
        (Err(_), version) => version.to_owned(),
    }
}

#[cfg(any(test, feature = "fuzz"))]
pub(super) fn fuzz(bytes: &[u8]) {
    for path in mapped(bytes) {
        let versions = LIBRARIES.iter().filter_map(|l| l.version_in(path));
        assert!(versions.into_iter().all(|v| v.len() <= MAX_VERSION_CHARS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Process(tempfile::TempDir);

    impl Process {
        /// A process whose mappings are these files under a directory of its own.
        fn new(files: &[&str]) -> (Self, Roots) {
            let dir = tempfile::tempdir().unwrap();
            let mut maps =
                vec!["00400000-00452000 r-xp 00000000 08:02 173521 /usr/bin/python3.11".to_owned()];
            for file in files {
                let path = dir.path().join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, "ELF").unwrap();
                for part in ["r--p", "r-xp"] {
                    maps.push(format!(
                        "7f1c00000000-7f1c00100000 {part} 00000000 08:02 99 {}",
                        path.display()
                    ));
                }
            }
            maps.push("7ffc1000-7ffc2000 rw-p 00000000 00:00 0 [stack]".to_owned());
            fs::create_dir_all(dir.path().join("proc/7")).unwrap();
            fs::write(dir.path().join("proc/7/maps"), maps.join("\n")).unwrap();
            let roots = Roots { procfs: dir.path().join("proc"), ..Roots::default() };
            (Self(dir), roots)
        }

        fn package(&self, name: &str) {
            fs::create_dir_all(self.0.path().join("venv/site-packages").join(name)).unwrap();
        }
    }

    #[test]
    fn versions_of_files_and_of_packages() {
        let (process, roots) = Process::new(&[
            "usr/lib/libcuda.so.570.133.20",
            "venv/site-packages/nvidia/nccl/lib/libnccl.so.2",
            "venv/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12",
            "venv/site-packages/torch/lib/libtorch_cpu.so",
            "opt/amazon/libfabric.so.1.27.0",
            "opt/ofi/libnccl-net.so",
            "usr/lib/libibverbs.so.1",
            "usr/lib/libcudadebugger.so.1",
        ]);
        for name in [
            "nvidia_nccl_cu12-2.21.5.dist-info",
            "nvidia_cuda_runtime_cu12-12.4.127.dist-info",
            "torch-2.5.1+cu124.dist-info",
            "torchvision-0.20.1.dist-info",
        ] {
            process.package(name);
        }
        let found = versions(&roots, 7).unwrap();
        let want = [
            ("cuda", "570.133.20"),
            ("cudart", "12.4.127"),
            ("libfabric", "1.27.0"),
            ("libibverbs", "1 (3 bytes)"),
            ("nccl", "2.21.5"),
            ("nccl_net", "3 bytes"),
            ("torch", "2.5.1+cu124"),
        ];
        assert_eq!(found, want.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        assert_eq!(versions(&roots, 8), None);
    }

    #[test]
    fn mappings_without_end_are_not_copied() {
        let line = |name: &[u8]| [b"0-1 r-xp 0 0:0 1 /", name, b"\n"].concat();
        let maps: Vec<u8> = (0..1000).flat_map(|n| line(format!("{n}/libnccl.so.2").as_bytes())).collect();
        assert_eq!(mapped(&maps).len(), MAX_FILES);
        let foreign = [line(b"\xff\xff"), line(b"\xff/libnccl.so.2"), line(b"lib\xff.so")].concat();
        assert_eq!(mapped(&foreign).len(), 1);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text: String, name in "libnccl[.a-z0-9/]{0,20}") {
            fuzz(format!("{text}\n0-1 r-xp 0 0:0 1 /{name}").as_bytes());
        }
    }
}
